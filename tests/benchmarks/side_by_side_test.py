from benchmarks import side_by_side


def test_summary():
  def measured(tokens, seconds):
    return dict(tokens=tokens, seconds=seconds, data_seconds=0.02, nats=2.0)

  ours = [measured(100, s) for s in (1.0, 2.0, 1.0)]
  theirs = [measured(100, s) for s in (2.0, 2.0, 4.0)]
  assert side_by_side.summary(list(zip(ours, theirs))) == [
    'txl_jax: 100.0 (50.0 to 100.0) tokens/s, nll 2.000 nats',
    'transformers: 50.0 (25.0 to 50.0) tokens/s, nll 2.000 nats',
    'txl_jax: 1.500% of the time spent on batches',
    'ratio: 2.000 (1.000 to 4.000)',
  ]
