"""Models of other libraries on PyTorch, for `side_by_side`.

transformers: the Transformer-XL of Hugging Face transformers, of which 4.35.2
is the last version to maintain it. x_transformers: a pre-norm Transformer with
a memory of past states and T5's relative biases, one for each head and
(logarithmic) distance, added to plain scores: other parameters, less work.

A plain script for an interpreter of another environment, it imports nothing but
torch, one of these libraries and the standard library.

Its argument is a specification, a JSON object. It answers with one JSON object
per line until its input ends: when it is warm {parameters, versions, device},
or {error} where it cannot run at all; then, for each line it is sent, the
{rate, nats} of a measurement: tokens/s and the mean nll.
"""

import importlib.metadata
import json
import os
import sys
import time
import types
import warnings


def _transformers(spec):
  """The model; what reads a segment; the loss of what it read."""
  os.environ.setdefault('TRANSFORMERS_VERBOSITY', 'error')
  import transformers  # pyright: ignore[reportMissingImports]

  sizes = dict(n_layer=spec.layers, n_head=spec.heads, d_head=spec.d_head)
  sizes |= dict(d_model=spec.d_model, d_embed=spec.d_model, d_inner=spec.d_ff)
  sizes |= dict(vocab_size=spec.vocab, cutoffs=[], div_val=1)
  positions = dict(clamp_len=0, same_length=False, untie_r=False)
  rest = dict(mem_len=spec.memory, dropout=spec.dropout, dropatt=0.0)
  config = transformers.TransfoXLConfig(**sizes, **positions, **rest)
  model = transformers.TransfoXLLMHeadModel(config)

  def read(tokens, mems):
    out = model.transformer(tokens, mems=mems)
    return out.last_hidden_state, out.mems

  # The model's own loss does not run under autocast.
  loss = lambda states, tokens: model.crit(states.float(), tokens).mean()
  return model, read, loss


def _x_transformers(spec):
  """As `_transformers`."""
  import x_transformers  # pyright: ignore[reportMissingImports]
  from torch.nn import functional  # pyright: ignore[reportMissingImports]

  if spec.benchmark == 'decode':
    raise ImportError('it is compared in train and eval alone')
  layers = x_transformers.Decoder(
    dim=spec.d_model,
    depth=spec.layers,
    heads=spec.heads,
    attn_dim_head=spec.d_head,
    ff_mult=spec.d_ff / spec.d_model,
    ff_dropout=spec.dropout,
    rel_pos_bias=True,
  )
  model = x_transformers.TransformerWrapper(
    num_tokens=spec.vocab,
    max_seq_len=spec.segment,
    max_mem_len=spec.memory,
    emb_dropout=spec.dropout,
    tie_embedding=True,
    attn_layers=layers,
  )

  def read(tokens, mems):
    return model(tokens, mems=mems, return_mems=True)

  def loss(logits, tokens):
    logits = logits[:, :-1].float().flatten(0, 1)
    return functional.cross_entropy(logits, tokens[:, 1:].flatten())

  return model, read, loss


def prepare(spec):
  """The first answer, and a function that makes so many steps and measures.

  Tokens are drawn at random on the device. A row of T tokens has T - 1
  targets: the models shift the labels themselves.
  """
  warnings.simplefilter('ignore')
  import torch  # pyright: ignore[reportMissingImports]

  torch.manual_seed(spec.seed)
  torch.set_num_threads(spec.threads)
  device = 'cuda' if spec.device == 'gpu' else 'cpu'
  if device == 'cuda':
    if not torch.cuda.is_available():
      raise RuntimeError('torch sees no GPU')
    torch.set_float32_matmul_precision('high')  # TF32, as XLA has it
  peers = dict(transformers=_transformers, x_transformers=_x_transformers)
  model, read, loss_of = peers[spec.peer](spec)
  model.to(device)
  train, shape = spec.benchmark == 'train', (spec.batch, spec.segment)
  decode = spec.benchmark == 'decode'
  optimiser = torch.optim.Adam(model.parameters(), lr=spec.lr)
  model.train(train)
  mems = None
  narrow = torch.autocast(
    device, torch.bfloat16, enabled=spec.dtype == 'bfloat16'
  )

  def step():
    nonlocal mems
    tokens = torch.randint(spec.vocab, shape, device=device)
    with torch.set_grad_enabled(train):
      with narrow:
        out, mems = read(tokens, mems)
      loss = loss_of(out, tokens)
    if train:
      optimiser.zero_grad()
      loss.backward()
      torch.nn.utils.clip_grad_norm_(model.parameters(), spec.clip)
      optimiser.step()
    return loss.detach()

  def predict(tokens):
    """Continues the memory; the likeliest next tokens."""
    nonlocal mems
    with torch.no_grad(), narrow:
      out = model(tokens, mems=mems)
    mems = out.mems
    return out.logits[:, -1:].argmax(-1)

  def write():
    """As many tokens as a segment has, one after the other."""
    nonlocal token
    for _ in range(spec.segment):
      token = predict(token)
    return token.new_zeros([], dtype=torch.float)

  if decode:
    step = write
    token = torch.randint(spec.vocab, (spec.batch, 1), device=device)
    for _ in range(0, spec.memory, spec.segment):
      token = predict(torch.randint(spec.vocab, shape, device=device))

  def measure(steps):
    begin = time.perf_counter()
    nats = float(sum(step() for _ in range(steps))) / steps
    if device == 'cuda':
      torch.cuda.synchronize()
    tokens = steps * spec.batch * spec.segment
    return dict(rate=tokens / (time.perf_counter() - begin), nats=nats)

  measure(min(2, spec.steps))
  parameters = sum(p.numel() for p in model.parameters())
  versions = f'torch {torch.__version__}, {spec.peer} {_version(spec.peer)}'
  ready = dict(parameters=parameters, versions=versions, device=device)
  return ready, measure


def _version(name):
  return importlib.metadata.version(name.replace('_', '-'))


def main():
  """Answers until the input ends."""
  # What any library prints goes to stderr: stdout holds answers only.
  answers = os.fdopen(os.dup(sys.stdout.fileno()), 'w')
  os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

  def answer(message):
    print(json.dumps(message), file=answers, flush=True)

  spec = types.SimpleNamespace(**json.loads(sys.argv[1]))
  try:
    ready, measure = prepare(spec)
  # No library, one without the model, no GPU or one too small.
  except (ImportError, AttributeError, RuntimeError) as e:
    answer(dict(error=' '.join(str(e).split())))
    return
  answer(ready)
  for _ in sys.stdin:
    answer(measure(spec.steps))


if __name__ == '__main__':
  main()
