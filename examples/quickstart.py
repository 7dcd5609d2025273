"""Build a model, score a text, generate, save and load: no workdir, no config.

pip install -e .  # in a clone
python examples/quickstart.py
"""

import pathlib
import tempfile

import jax
import jax.numpy as jnp
import numpy as np

from txl_jax import models
from txl_jax.data.vocabularies.bytes import Bytes
from txl_jax.generation import decoding, sampling
from txl_jax.models import base
from txl_jax.runs import weights_file

# Build: a model from the config's section `model`, and a vocabulary.
fields = dict(
  name='transformer_xl',
  n_layer=2,
  d_model=32,
  n_head=2,
  d_head=16,
  d_ff=64,
  mem_len=16,
)
vocabulary = Bytes.all_bytes()
model = models.build(fields, len(vocabulary))
params = base.init_params(model, jax.random.key(0))

# Score: nats per byte of a text, in two segments linked by the memory.
text = b'The memory of the first segment is read by the second one.'
tokens = jnp.asarray(vocabulary.encode(text, 'the text'), jnp.int32)
memory = model.init_memory(batch_size=1)
total, half = 0.0, len(tokens) // 2
for start, end in ((0, half), (half, len(tokens) - 1)):
  inputs, targets = tokens[start:end], tokens[start + 1 : end + 1]
  out = model.apply(
    {'params': params}, inputs[None], targets[None], memory, train=False
  )
  total, memory = total + float(out.nll.sum()), out.memory
print(f'{total / (len(tokens) - 1):.3f} nats per byte (untrained: ln 256)')

# Generate. With `longest`, the longest segment, the memory is keys and values.
pieces = decoding.generate(
  model.at_test_time(longest=16),
  params,
  tokens,
  sampling=sampling.Sampling(temperature=0.8, top_k=40),
  max_new_tokens=20,
  seed=0,
  segment_len=16,
)
new = np.concatenate([piece[0] for piece in pieces])
print(repr(vocabulary.decode(new)))

# Save and load: one file with parameters, model fields and vocabulary.
with tempfile.TemporaryDirectory() as folder:
  path = pathlib.Path(folder) / 'model.npz'
  weights_file.save(path, params, fields, vocabulary.to_json())
  loaded, same_params, _ = weights_file.load(path)
assert loaded == model
assert jax.tree.all(jax.tree.map(np.array_equal, params, same_params))
