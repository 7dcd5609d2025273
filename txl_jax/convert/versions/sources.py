"""The published code bases, and behaviour that their weights do not determine.

From the source of each: mem_transformer.py and model.py of
github.com/kimiyoung/transformer-xl, PyTorch/LanguageModeling/Transformer-XL of
github.com/NVIDIA/DeepLearningExamples, and models/transfo_xl of transformers
4.35.2.
"""

from typing import NamedTuple


class Source(NamedTuple):
  """A code base; most fields are values of keys of the section `model`."""

  title: str
  memory_init: str  # the initial memory
  span: str  # the value of same_length if it is on
  tail_order: str  # the order of the tail logits
  ln_eps: float
  # Prefixes of tensors that are not saved if tied.
  left_out: tuple[str, ...] = ()
  mark: str = ''  # a prefix of tensor names unique to it


_BOTH = 'crit.out_layers.', 'crit.out_projs.'
SOURCES = {
  'original': Source(
    'the original PyTorch code', 'empty', 'M', 'descending', 1e-5
  ),
  'tensorflow': Source(
    'the original TensorFlow code', 'zeros', 'M+1', 'ascending', 1e-12, _BOTH
  ),
  'hugging_face': Source(
    'Hugging Face', 'zeros', 'M', 'ascending', 1e-5, _BOTH,
    'transformer.word_emb.',
  ),
  'nvidia': Source(
    "NVIDIA's version", 'empty', 'M+1', 'descending', 1e-5, _BOTH,
    'crit.out_layers_biases.',
  ),
}  # fmt: skip


def of_state(state: dict) -> str:
  """The key of SOURCES for a PyTorch state dict, by its tensor names."""
  for name in 'hugging_face', 'nvidia':
    if any(x.startswith(SOURCES[name].mark) for x in state):
      return name
  return 'original'
