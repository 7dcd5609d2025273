"""The text that is printed while it is made: UTF-8 in pieces."""

import contextlib
import io
import itertools
import operator
from unittest import mock

import hypothesis
import pytest
from hypothesis import strategies as st

from txl_jax.configs import common
from txl_jax.data.vocabularies.bytes import Bytes
from txl_jax.experiment import saved_model, sections
from txl_jax.experiment.job import Job
from txl_jax.generation import decoding, text_writer
from txl_jax.modes import generate
from txl_jax.runs.terminal import Console

SAMPLE = 'a é € 𝄞 z'


class Output(io.StringIO):
  """Keeps what is written at each call, up to the one that flushes it."""

  def __init__(self):
    super().__init__()
    self.flushed = ['']

  def flush(self):
    self.flushed.append(self.getvalue()[len(''.join(self.flushed)) :])


def printed(*pieces, prompt='', left=None, said=None):
  """What is printed, flush by flush, of a model that writes these bytes.

  `left` gets how many pieces are left after each phase, `said` the lines.
  """
  vocabulary = Bytes.all_bytes()
  ids = [vocabulary.encode(piece, 'a piece')[None] for piece in pieces]
  writer = text_writer.Writer(None, None, vocabulary, 1, {})
  found = saved_model.Restored(1, {}, 0, vocabulary, {}, '', None)
  c = common.get_config()
  c.generate.prompt = prompt
  job = Job(sections.read(c), None, Console(silent=True), None, '')
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(saved_model, 'load', lambda *_: found)
    patch.setattr(text_writer, 'make', lambda *_: writer)
    patch.setattr(text_writer.Writer, 'read', lambda *_: None)
    patch.setattr(decoding, 'repeat_rows', lambda *_: None)
    new = iter([(x, None) for x in ids])
    patch.setattr(text_writer.Writer, 'decode', lambda *_, **__: new)
    if left is not None:
      after = lambda *_: left.append(operator.length_hint(new))
      phase = mock.MagicMock(**{'return_value.__exit__.side_effect': after})
      patch.setattr(Console, 'phase', phase)
      patch.setattr(Console, 'say', lambda _, line: said.append(line))
    with contextlib.redirect_stdout(Output()) as out:
      generate.run(job)
  assert out.getvalue() == ''.join(out.flushed)
  return out.flushed[1:]


@pytest.mark.parametrize('cut', range(len(SAMPLE.encode()) + 1))
def test_incomplete_characters_are_held_back(cut):
  text = SAMPLE.encode()
  first, *rest = printed(text[:cut], text[cut:])
  assert SAMPLE.startswith(first)
  # Only the bytes of one incomplete character are held back.
  assert cut - len(first.encode()) < 4
  assert first + ''.join(rest) == SAMPLE + '\n'


def test_single_bytes_after_a_prompt():
  pieces = [bytes([byte]) for byte in '😀b'.encode()]
  assert printed(*pieces, prompt='é') == ['é', '😀', 'b', '\n']


def test_the_first_two_pieces_are_of_a_phase(monkeypatch):
  """They compile; only before subwords, a space at the end is warned of."""
  told = 'warning: the prompt ends in a space'
  for kind, prompt in itertools.product(['subwords', 'bytes', 'words'], 'a '):
    monkeypatch.setattr(Bytes, 'kind', kind)
    left, said = [], []
    out = printed(b'a', b'b', b'c', prompt=prompt, left=left, said=said)
    assert ''.join(out) == f'{prompt}abc\n' and left[-1] == 2
    warned = (kind, prompt) == ('subwords', ' ')
    assert [x[: len(told)] for x in said] == [told] * warned


@hypothesis.settings(deadline=None, max_examples=60, derandomize=True)
@hypothesis.given(st.lists(st.binary(max_size=3), max_size=6))
def test_pieces_are_what_decoding_at_once_gives(pieces):
  whole = b''.join(pieces).decode('utf-8', errors='replace') + '\n'
  assert ''.join(printed(*pieces)) == whole
