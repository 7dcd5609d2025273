"""Makes back.npz: what Hugging Face computes with models of ours.

  python -m tests.convert.golden.make_back FOLDER

writes them into a folder, as `txl_jax.convert` does; then a Python that has
torch and transformers 4.35.2 runs them:

  python tests/convert/golden/make_back.py FOLDER

The file has ids, int32 [B, n + 1], of which the last n are scored, and of each
case its nll, float32 [B, n], over segments of T tokens; and `digests`, JSON
text, the `digest` of each case's folder.
"""

import hashlib
import json
import pathlib
import sys

import numpy as np

HERE = pathlib.Path(__file__).parent
V, B, T, SEGMENTS = 31, 2, 5, 4
BASE = dict(
  name='transformer_xl',
  n_layer=2,
  d_model=16,
  n_head=2,
  d_head=6,
  d_ff=24,
  mem_len=6,
  memory_init='zeros',
)
ADAPTIVE = dict(cutoffs=(6, 15))
CASES = {
  'plain': dict(),
  # A memory that starts empty; there with mems of length 0.
  'empty': dict(memory_init='empty', untie_biases=True),
  'span': dict(same_length='M+1', clamp_len=3, pre_norm=True, ln_eps=1e-12),
  'div1': dict(ADAPTIVE, same_length='M', tail_order='descending'),
  'narrow': dict(ADAPTIVE, d_embed=10, tie_weights=False),
  'div4': dict(
    ADAPTIVE, div_val=4, tie_projs=(False, True, False), untie_biases=True
  ),
}


def ids():
  rng = np.random.default_rng(3)
  return rng.integers(V, size=[B, SEGMENTS * T + 1]).astype(np.int32)


def weights(case):
  """A model of ours with drawn parameters, as `convert` has it."""
  import flax.traverse_util

  from txl_jax import models
  from txl_jax.convert import vocabularies
  from txl_jax.convert.weights import Weights
  from txl_jax.models import base

  fields = {**BASE, **CASES[case]}
  model = models.build(fields, V)
  fields = {**vars(model.config)}
  shapes = base.param_shapes(model)
  rng, params = np.random.default_rng(7), {}
  for path, x in flax.traverse_util.flatten_dict(shapes).items():
    about = float(path[-1] == 'scale')
    draw = about + 0.3 * rng.normal(size=x.shape)
    params[path] = draw.astype(np.float32)
  params = flax.traverse_util.unflatten_dict(params)
  return Weights(fields, params, vocabularies.of_ids(V))


def write(folder):
  from txl_jax.convert import write_weights

  for case in CASES:
    write_weights.to_hugging_face(folder / case, weights(case))


def digest(folder):
  """sha256 of the tensors and the config in a folder."""
  import safetensors.numpy

  tensors = safetensors.numpy.load_file(folder / 'model.safetensors')
  config = json.loads((folder / 'config.json').read_text())
  found = hashlib.sha256(json.dumps(config, sort_keys=True).encode())
  for name in sorted(tensors):
    found.update(f'{name}{tensors[name].shape}'.encode())
    found.update(tensors[name].tobytes())
  return found.hexdigest()


def score(folder):
  """Nll of a folder by Hugging Face, float32 [B, n]."""
  import torch
  import transformers

  model, said = transformers.TransfoXLLMHeadModel.from_pretrained(
    folder, output_loading_info=True
  )
  of_embedding = ('crit.out_layers', 'crit.out_projs')
  missing = [x for x in said['missing_keys'] if not x.startswith(of_embedding)]
  assert not missing and not said['unexpected_keys'], said
  model.eval()
  text, mems, found = torch.tensor(ids()).long(), None, []
  if folder.name == 'empty':
    mems = [torch.zeros(0, B, 16)] * 2
  for start in range(0, text.shape[1] - 1, T):
    inputs, targets = text[:, start : start + T], text[:, start + 1 :][:, :T]
    with torch.no_grad():
      out = model(inputs[:, : targets.shape[1]], mems=mems)
    mems = out.mems
    scores = out.prediction_scores.reshape(*targets.shape, -1)
    found.append(-scores.gather(-1, targets[..., None])[..., 0].numpy())
  return np.concatenate(found, axis=1)


if __name__ == '__main__':
  root = pathlib.Path(sys.argv[1])
  if __spec__:
    write(root)
  else:
    nll = {case: score(root / case) for case in CASES}
    digests = json.dumps({case: digest(root / case) for case in CASES})
    np.savez(HERE / 'back.npz', ids=ids(), digests=np.array(digests), **nll)
