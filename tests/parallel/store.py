"""The store of jax.distributed, as a dict."""

import threading


class Store:
  """Counts its calls; `fails` makes them raise."""

  def __init__(self):
    self.values, self.calls, self.fails = {}, 0, False
    self._changed = threading.Condition()

  def _call(self):
    self.calls += 1
    if self.fails:
      raise RuntimeError('UNAVAILABLE')

  def key_value_set(self, key, value, allow_overwrite=False):
    with self._changed:
      self._call()
      assert allow_overwrite or key not in self.values
      self.values[key] = value
      self._changed.notify_all()

  def key_value_try_get(self, key):
    with self._changed:
      self._call()
      if key not in self.values:
        raise RuntimeError('NOT_FOUND')
      return self.values[key]

  def blocking_key_value_get(self, key, timeout_in_ms):
    with self._changed:
      self._call()
      assert self._changed.wait_for(
        lambda: key in self.values, min(timeout_in_ms / 1000, 20)
      )
      return self.values[key]

  def key_value_increment(self, key, increment):
    with self._changed:
      self._call()
      value = int(self.values.get(key, 0)) + increment
      self.values[key] = str(value)
      return value

  def key_value_dir_get(self, prefix):
    with self._changed:
      self._call()
      return [(k, v) for k, v in self.values.items() if k.startswith(prefix)]

  def wait_at_barrier(self, name, timeout_in_ms):
    pass  # all are there
