import math
import re
import sys

from tests import programs


def test_quickstart():
  done = programs.run([sys.executable, 'examples/quickstart.py'])
  assert done.returncode == 0, done.stderr
  score, text = done.stdout.splitlines()
  nats = float(re.match(r'([\d.]+) nats per byte', score)[1])
  assert abs(nats - math.log(256)) < 0.2  # untrained
  assert text.startswith(("b'", 'b"'))
