"""Without samples, which cannot be generated, training goes on."""

from tests.modes import runs
from txl_jax.modes import train


def test_a_run_without_samples(tmp_path, capfd):
  c = runs.config()
  c.train.sample_tokens, c.generate.window = 3, 3
  for c.generate.prompt, reason in (
    ('ax', 'generate.prompt: byte 0x78 at position 1'),
    ('a', 'generate.window is 3; allowed: 0, because the model has a memory'),
  ):
    job = runs.job(c, tmp_path, silent=False)
    assert train._sampler(job, runs.VOCABULARY) is None
    said = f'warning: no samples are generated: {reason}'
    assert capfd.readouterr().err.startswith(said)
