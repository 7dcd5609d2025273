"""The other worker: Transformer-XL of Hugging Face transformers on PyTorch.

`side_by_side` starts it as a plain script, often with an interpreter of another
environment, so it imports nothing but torch, transformers, the standard library
and `worker`, which lies beside it. Version 4.35.2 of transformers is the last
to hold this model as a maintained one.
"""

import os
import sys
import time
import warnings

import worker  # pyright: ignore[reportMissingImports]


def build(spec):
  """Imports the libraries; the model of a specification on its device."""
  if spec.dtype != 'float32':
    raise RuntimeError('this side runs in float32 only')
  os.environ.setdefault('TRANSFORMERS_VERBOSITY', 'error')
  warnings.simplefilter('ignore')
  import torch  # pyright: ignore[reportMissingImports]
  import transformers  # pyright: ignore[reportMissingImports]

  torch.manual_seed(spec.seed)
  torch.set_num_threads(spec.threads)
  device = 'cuda' if spec.device == 'gpu' else 'cpu'
  if device == 'cuda':
    if not torch.cuda.is_available():
      raise RuntimeError('torch sees no GPU')
    torch.set_float32_matmul_precision('high')  # TF32, as XLA has it
  config = transformers.TransfoXLConfig(
    vocab_size=spec.vocab,
    cutoffs=[],
    div_val=1,
    n_layer=spec.layers,
    d_model=spec.d_model,
    d_embed=spec.d_model,
    n_head=spec.heads,
    d_head=spec.d_head,
    d_inner=spec.d_ff,
    mem_len=spec.memory,
    clamp_len=0,
    same_length=False,
    untie_r=False,
    dropout=spec.dropout,
    dropatt=0.0,
  )
  return transformers.TransfoXLLMHeadModel(config).to(device)


def prepare(spec):
  """See `worker.serve`.

  Tokens are drawn at random on the device. A row of T tokens has T - 1
  targets: the model shifts the labels itself.
  """
  model = build(spec)
  import torch  # pyright: ignore[reportMissingImports]

  device = next(model.parameters()).device
  train = spec.benchmark == 'train'
  optimiser = torch.optim.Adam(model.parameters(), lr=spec.lr)
  model.train(train)
  mems = None

  def step():
    nonlocal mems
    shape = (spec.batch, spec.segment)
    tokens = torch.randint(spec.vocab, shape, device=device)
    with torch.set_grad_enabled(train):
      out = model(tokens, mems=mems, labels=tokens)
    mems = out.mems
    loss = out.losses.mean()
    if train:
      optimiser.zero_grad()
      loss.backward()
      torch.nn.utils.clip_grad_norm_(model.parameters(), spec.clip)
      optimiser.step()
    return loss.detach()

  def measure(steps=spec.steps):
    begin = time.perf_counter()
    nats = float(sum(step() for _ in range(steps))) / steps
    if device.type == 'cuda':
      torch.cuda.synchronize()
    seconds = time.perf_counter() - begin
    tokens = steps * spec.batch * spec.segment
    return dict(tokens=tokens, seconds=seconds, data_seconds=0.0, nats=nats)

  measure(2)
  libraries = (sys.modules[name] for name in ('torch', 'transformers'))
  ready = dict(
    parameters=sum(p.numel() for p in model.parameters()),
    versions=', '.join(f'{m.__name__} {m.__version__}' for m in libraries),
    device=device.type,
  )
  return ready, measure


if __name__ == '__main__':
  # No library, one without the model, no GPU or one too small, bfloat16.
  worker.serve(prepare, (ImportError, AttributeError, RuntimeError))
