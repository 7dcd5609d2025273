"""One command for all programs: txl-jax, or python -m txl_jax.

txl-jax --config=pystdlib_tiny       is python -m txl_jax.main --config=…
txl-jax prepare --dataset=enwik8     is python -m txl_jax.prepare --dataset=…

and likewise report and convert. txl-jax export is another name of convert:

txl-jax export --from=runs/mine --to=hf://ORG/NAME
"""

import sys

from txl_jax.program import signals

# {program: module}.
PROGRAMS = {x: x for x in ('prepare', 'report', 'convert')}
PROGRAMS['export'] = 'convert'


def entry() -> None:
  """Runs the program named by the first argument; by default, main."""
  signals.catch()
  import runpy

  module = 'main'
  if sys.argv[1:] and not sys.argv[1].startswith('-'):
    program = sys.argv.pop(1)
    if program not in PROGRAMS:
      allowed = f'{", ".join(PROGRAMS)}; for a mode type --mode=…'
      sys.exit(f'error: no program {program!r:.200}; allowed: {allowed}')
    module = PROGRAMS[program]
  # As python -m does, so that both behave alike.
  runpy.run_module(f'txl_jax.{module}', run_name='__main__', alter_sys=True)


if __name__ == '__main__':
  entry()
