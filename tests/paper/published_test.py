"""The tables of the paper, and the configs that they name."""

from tests import configs_test
from txl_jax.paper import published


def test_every_row_is_one_of_a_config():
  """And every experiment of a table is a config that there is."""
  names = configs_test.NAMES | {
    f'{file}:{variant}'
    for file in configs_test.OF_TEXT
    for variant in configs_test.variants(file)
  }
  for table in published.TABLES:
    for row in table.rows:
      assert len(row.published) in (0, len(table.columns))
      for name in filter(None, (row.experiment, *row.small)):
        assert name in names
      assert {name.partition(':')[0] for name in row.small} <= {
        *published.SMALL
      }


def test_every_config_has_a_row():
  """But for those without a published figure in a table."""
  rows = [row for table in published.TABLES for row in table.rows]
  of_rows = {name for row in rows for name in (row.experiment, *row.small)}
  own = {'pystdlib_tiny', 'pystdlib_ablations:gcnn', 'ptb_tiny:gcnn'}
  assert configs_test.NAMES - of_rows == own | {'text8_12l', 'wt2'}
  figures = {row.experiment: row.published for row in rows}
  assert figures['gcnn:9'] == figures['gcnn:8b'] == (43.9,)


def test_every_row_of_the_paper():
  """Counted on the paper; six of or beside Dauphin et al. are more."""
  found = {
    t.number: sum(bool(row.published) for row in t.rows)
    for t in published.TABLES[:-1]
  }
  assert found == {
    1: 10, 2: 11, 3: 7, 4: 13 + 4, 5: 11 + 2, 6: 12, 7: 3, 8: 7, 9: 4, 10: 4
  }  # fmt: skip
  missing = {
    t.number: sum(not row.experiment for row in t.rows)
    for t in published.TABLES[:5]
  }
  assert missing == {1: 5, 2: 6, 3: 4, 4: 10, 5: 10}
