"""The store of jax.distributed, as a dict."""

import threading


class Store:
  """What is set once cannot be set again."""

  def __init__(self):
    self.values = {}
    self._changed = threading.Condition()

  def key_value_set(self, key, value):
    with self._changed:
      if key in self.values:
        raise RuntimeError('ALREADY_EXISTS')
      self.values[key] = value
      self._changed.notify_all()

  def key_value_try_get(self, key):
    with self._changed:
      if key not in self.values:
        raise RuntimeError('NOT_FOUND')
      return self.values[key]

  def blocking_key_value_get(self, key, timeout_in_ms):
    with self._changed:
      assert timeout_in_ms > 1000 * 24 * 3600  # for days
      assert self._changed.wait_for(
        lambda: key in self.values, min(timeout_in_ms / 1000, 20)
      )
      return self.values[key]

  def key_value_increment(self, key, increment):
    with self._changed:
      value = int(self.values.get(key, 0)) + increment
      self.values[key] = str(value)
      return value

  def wait_at_barrier(self, name, timeout_in_ms):
    assert 1000 < timeout_in_ms < 60_000  # all are there
