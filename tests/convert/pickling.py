"""Pickles as they should not be, and as Python 2 wrote them."""

import collections
import io
import pickle
import struct

PROTOCOL = b'\x80\x02'


class Python2(pickle._Pickler):  # pyright: ignore
  """Protocol 2 with strings that are bytes, as cPickle wrote them."""

  dispatch = dict(pickle._Pickler.dispatch)  # pyright: ignore

  def save_string(self, obj):
    data = obj.encode()
    if len(data) < 256:
      self.write(b'U' + bytes([len(data)]) + data)
    else:
      self.write(b'T' + struct.pack('<i', len(data)) + data)
    self.memoize(obj)

  dispatch[str] = save_string

  def reducer_override(self, obj):
    if type(obj) is collections.OrderedDict:
      return collections.OrderedDict, ([list(pair) for pair in obj.items()],)
    return NotImplemented


def python2(obj):
  out = io.BytesIO()
  Python2(out, 2).dump(obj)
  return out.getvalue()


def text(string):
  data = string.encode()
  return b'X' + struct.pack('<I', len(data)) + data


def call(module, name, *args):
  """A pickle that calls a function with texts."""
  found = f'c{module}\n{name}\n('.encode()
  return PROTOCOL + found + b''.join(map(text, args)) + b'tR.'


class Runs:
  """What a plain unpickler would run."""

  def __init__(self, function, *args):
    self.call = function, args

  def __reduce__(self):
    return self.call
