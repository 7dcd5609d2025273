"""The versions of the model, and how each behaves where weights do not tell.

Read in the code of each: mem_transformer.py and model.py of
github.com/kimiyoung/transformer-xl, PyTorch/LanguageModeling/Transformer-XL of
github.com/NVIDIA/DeepLearningExamples, and models/transfo_xl of transformers
4.35.2.
"""

from typing import NamedTuple


class Source(NamedTuple):
  """What a version does; each field is the value of a key of `model`."""

  title: str
  memory_init: str  # what a memory starts with
  span: str  # same_length, where it is on
  tail_order: str  # of the logits that stand for tails
  ln_eps: float
  left_out: tuple[str, ...] = ()  # what is saved once if it is tied
  mark: str = ''  # the beginning of names that only its state dicts have


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
  """Which of SOURCES a state dict of PyTorch is of, by the names of tensors."""
  for name in 'hugging_face', 'nvidia':
    if any(x.startswith(SOURCES[name].mark) for x in state):
      return name
  return 'original'
