"""Training whose samples cannot be drawn: it is told, and goes on."""

from tests.modes import runs
from txl_jax.modes import train


def test_a_run_without_samples(tmp_path, capfd):
  c = runs.config()
  c.generate.update(window=3, prompt='ax')
  for tokens, told in (
    (0, ''),
    (3, 'generate.prompt: byte 0x78 at position 1'),
    (3, 'generate.window is 3; allowed: 0, because the model has a memory'),
  ):
    c.train.sample_tokens = tokens
    job = runs.job(c, tmp_path, silent=False)
    assert train._sampler(job, runs.VOCABULARY) is None
    said = f'warning: no samples are generated: {told}' if told else ''
    err = capfd.readouterr().err
    assert err.startswith(said) and bool(err) == bool(told)
    c.generate.prompt = 'a' if told else 'ax'
