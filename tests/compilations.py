"""What XLA compiles while something runs."""

import contextlib

import jax


@contextlib.contextmanager
def counted():
  """A list that fills with the names of what is compiled: 'jit(step)'."""
  names = []

  def note(event, seconds, **about):
    if event == '/jax/core/compile/backend_compile_duration':
      names.append(about['fun_name'])

  jax.monitoring.register_event_duration_secs_listener(note)
  try:
    yield names
  finally:
    jax.monitoring.unregister_event_duration_listener(note)
