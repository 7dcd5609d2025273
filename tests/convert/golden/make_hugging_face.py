"""Makes the folders hf_*: what Hugging Face saves, and computes.

  python make_hugging_face.py

needs torch and transformers 4.35.2. Every folder is a tiny model with random
weights, as `save_pretrained` writes it, and expected.npz:

  ids  int32 [B, n + 1], of which the last n are scored
  nll  float32 [B, n], over segments of T tokens with carried memory
"""

import pathlib
import warnings

import numpy as np
import torch
import transformers

HERE = pathlib.Path(__file__).parent
B, T, SEGMENTS = 2, 5, 4
BASE = dict(
  vocab_size=31,
  cutoffs=[6, 15],
  d_model=16,
  d_embed=16,
  n_head=2,
  d_head=6,
  d_inner=24,
  n_layer=2,
  mem_len=6,
  dropout=0.0,
  dropatt=0.0,
)
CASES = {
  # Published: div_val 4, untied biases, same_length, clamp_len.
  'hf_div4': dict(div_val=4, clamp_len=4, same_length=True, untie_r=True),
  'hf_div1': dict(div_val=1, clamp_len=-1, same_length=False, untie_r=False),
  'hf_narrow_bin': dict(
    div_val=1, d_embed=10, clamp_len=-1, same_length=True, untie_r=False,
    pre_lnorm=True, layer_norm_epsilon=1e-3, proj_share_all_but_first=False,
    tie_word_embeddings=False, d_inner=12,
  ),
}  # fmt: skip


def score(model, ids):
  """Nll of the tokens [B, n + 1] but the first, as numpy."""
  mems, found = None, []
  for start in range(0, ids.shape[1] - 1, T):
    inputs, targets = ids[:, start : start + T], ids[:, start + 1 :][:, :T]
    with torch.no_grad():
      out = model(inputs[:, : targets.shape[1]], mems=mems)
    mems = out.mems
    scores = out.prediction_scores.reshape(*targets.shape, -1)
    found.append(-scores.gather(-1, targets[..., None])[..., 0].numpy())
  return np.concatenate(found, axis=1)


def make(name, changes, seed):
  config = transformers.TransfoXLConfig(**{**BASE, **changes})
  model = transformers.TransfoXLLMHeadModel(config).eval()
  generator = torch.Generator().manual_seed(seed)
  with torch.no_grad():
    for key, p in model.named_parameters():
      about = 1.0 if 'layer_norm.weight' in key else 0.0
      p.copy_(about + 0.3 * torch.randn(p.shape, generator=generator))
  size = B, SEGMENTS * T + 1
  ids = torch.randint(config.vocab_size, size, generator=generator)
  folder = HERE / name
  model.save_pretrained(folder, safe_serialization='bin' not in name)
  (folder / 'generation_config.json').unlink()
  expected = dict(ids=ids.numpy().astype(np.int32), nll=score(model, ids))
  np.savez(folder / 'expected.npz', **expected)


if __name__ == '__main__':
  warnings.simplefilter('ignore')
  for seed, (name, changes) in enumerate(CASES.items()):
    make(name, changes, seed)
