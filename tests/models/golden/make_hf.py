"""Makes hf_*.npz: what the Transformer-XL of Hugging Face computes.

  python make_hf.py

needs torch and transformers 4.35.2, the last release that runs this model
with current versions of torch. Every case is a tiny model with random
weights over a few segments with carried memory, which Hugging Face starts as
attended zero states. In the last case there are so many that our ring of keys
and values turns more than three times, and after them as many more tokens, one
by one, each the likeliest. A file holds

  header      JSON text: config, versions, shapes {weight name: shape}
  weights     float16 (the weights are rounded to it, so it is exact): all
              weights, flattened, one after the other in the order of shapes
  ids         int8 [segments, B, T + 1]: inputs, and one more for targets
  log_probs   float32 [segments, B, T, V]
  more_ids    int8 [tokens, B]: inputs, one by one, in the last case
  more_log_probs  float32 [tokens, B, V]
  memory      float32 [N, B, M, D], after the last segment
"""

import json
import pathlib
import warnings

import numpy as np
import torch
import transformers

BASE = dict(
  vocab_size=11, cutoffs=[], d_model=16, d_embed=16, n_head=2, d_head=6,
  d_inner=24, n_layer=2, div_val=1, mem_len=6, clamp_len=-1, same_length=False,
  pre_lnorm=False, untie_r=False, dropout=0.0, dropatt=0.0, adaptive=True,
)  # fmt: skip
ADAPTIVE = dict(vocab_size=31, cutoffs=[6, 15])
SEGMENT_LENS = {'hf_same_length': 8}  # longer than the memory
SEGMENTS = {'hf_ring': 11}  # in others 4
MORE = {'hf_ring': 48}  # tokens, one by one
CASES = {
  'hf_tied': dict(),
  'hf_untied': dict(untie_r=True, n_layer=3, n_head=3),
  'hf_same_length': dict(same_length=True, clamp_len=4, untie_r=True),
  'hf_pre_norm': dict(pre_lnorm=True, same_length=True, clamp_len=7),
  'hf_adaptive': dict(**ADAPTIVE),
  'hf_adaptive_narrow': dict(**ADAPTIVE, d_embed=10),
  'hf_adaptive_narrow_untied': dict(
    **ADAPTIVE, d_embed=10, proj_share_all_but_first=False
  ),
  'hf_adaptive_div4': dict(**ADAPTIVE, div_val=4),
  'hf_adaptive_div4_untied': dict(
    **ADAPTIVE,
    div_val=4,
    d_embed=32,
    proj_share_all_but_first=False,
    tie_word_embeddings=False,
  ),
  'hf_ring': dict(untie_r=True),
}
B, T = 2, 5


def randomise(model, generator):
  """Every parameter at a size that lets it matter, exact in float16."""
  with torch.no_grad():
    for name, p in model.named_parameters():
      noise = torch.randn(p.shape, generator=generator)
      value = 0.3 * noise
      if 'layer_norm.weight' in name:
        value = 1 + value
      p.copy_(value.half().float())


def make(name, changes, seed):
  config = {**BASE, **changes}
  model = transformers.TransfoXLLMHeadModel(
    transformers.TransfoXLConfig(**config)
  )
  model.eval()
  generator = torch.Generator().manual_seed(seed)
  randomise(model, generator)
  length, segments = SEGMENT_LENS.get(name, T), SEGMENTS.get(name, 4)
  text = torch.randint(
    config['vocab_size'],
    (B, segments * length + 1),
    generator=generator,
  )
  ids, log_probs, mems = [], [], None
  for s in range(segments):
    segment = text[:, s * length : (s + 1) * length + 1]
    with torch.no_grad():
      out = model(segment[:, :-1], mems=mems)
    mems = out.mems
    ids.append(segment.numpy())
    log_probs.append(out.prediction_scores.reshape(B, length, -1).numpy())
  more_ids, more_log_probs, memory = [], [], mems
  for _ in range(MORE.get(name, 0)):
    token = out.prediction_scores.reshape(B, -1, config['vocab_size'])
    token = token[:, -1:].argmax(-1)
    with torch.no_grad():
      out = model(token, mems=mems)
    mems = out.mems
    more_ids.append(token[:, 0].numpy())
    more_log_probs.append(out.prediction_scores.reshape(B, -1).numpy())
  more = {}
  if name in MORE:
    more['more_ids'] = np.stack(more_ids).astype(np.int8)
    more['more_log_probs'] = np.stack(more_log_probs)
  # A tied parameter is listed once, under its first name.
  weights = {
    key: p.detach().numpy().astype(np.float16)
    for key, p in model.named_parameters()
  }
  config['tie_projs'] = model.config.tie_projs
  header = dict(
    config=config,
    seed=seed,
    layer_norm_epsilon=model.config.layer_norm_epsilon,
    torch=torch.__version__,
    transformers=transformers.__version__,
    shapes={key: w.shape for key, w in weights.items()},
  )
  np.savez_compressed(
    pathlib.Path(__file__).with_name(f'{name}.npz'),
    header=np.array(json.dumps(header)),
    ids=np.stack(ids).astype(np.int8),
    log_probs=np.stack(log_probs),
    memory=torch.stack(memory).transpose(1, 2).numpy(),
    weights=np.concatenate([w.ravel() for w in weights.values()]),
    **more,
  )


if __name__ == '__main__':
  warnings.simplefilter('ignore')
  for seed, (name, changes) in enumerate(CASES.items()):
    make(name, changes, seed)
