from benchmarks import side_by_side


def test_summary():
  ours = [dict(rate=x, nats=2.0) for x in (100.0, 50.0, 100.0)]
  theirs = [dict(rate=x, nats=2.0) for x in (50.0, 50.0, 25.0)]
  assert side_by_side.summary(list(zip(ours, theirs)), 'transformers') == [
    'txl_jax: 100.0 (50.0 to 100.0) tokens/s, nll 2.000 nats',
    'transformers: 50.0 (25.0 to 50.0) tokens/s, nll 2.000 nats',
    'ratio: 2.000 (1.000 to 4.000)',
  ]
