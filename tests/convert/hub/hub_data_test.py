"""Corpora from data sets on the Hub: its own client, and a server here."""

import dataclasses
import io

import numpy as np
import pyarrow as pa
import pytest
import requests
from pyarrow import parquet

from tests import refusing
from tests.convert.hub.conftest import WARNINGS
from tests.data.corpora import asking
from txl_jax.data.corpora import builders, downloads, finding
from txl_jax.data.data_config import Data

pytestmark = WARNINGS
SPLITS = 'train', 'validation', 'test'


def table(**columns):
  f = io.BytesIO()
  parquet.write_table(pa.table(columns), f)
  return f.getvalue()


def lines(split):
  return [f' = {split} = \n', '', ' a <unk> b \n'] * 9


def texts(folder):
  """The files of a data set: lines of text, blank ones empty."""
  names = {x: f'{folder}/{x}-00000-of-00001.parquet' for x in SPLITS}
  return {name: table(text=lines(x)) for x, name in names.items()}


def prepare(tmp_path, path, **options):
  return asking.prepare('text', tmp_path / 'data', path=path, **options)


def refused(*given, **options):
  return refusing.refused(prepare, *given, **options)


@pytest.mark.thorough
def test_text_and_its_revision(server, tmp_path):
  old = server.put('org/name', texts('v1') | {'README.md': b'# no text'})
  server.put('org/name', texts('v1') | texts('v2') | {'x.txt': b'x'})
  place = 'hf://datasets/org/name'
  found = prepare(tmp_path, f'{place}@{old}')
  assert found.manifest['source']['path'] == f'{place}@{old}'
  assert found.name.startswith('text-name')
  expected = ''.join(x if x else '\n' for x in lines('test')).encode()
  assert found.tokens('test').tobytes() == expected
  line = refused(tmp_path, place)
  assert 'has the folders v1, v2; allowed: one of them' in line
  again = prepare(tmp_path, f'{place}/v2')
  assert again.digest == found.digest
  asked = [path for _, path in server.asked if '/resolve/' in path]
  assert asked and all('.parquet' in path for path in asked)
  server.status = 503
  assert 'the Hub answers 503' in refused(tmp_path, f'{place}/v2')


def test_ids(server, tmp_path):
  records = [[1, 2, 3], [4], [5, 6]] * 9
  files = {f'{x}.parquet': table(ids=records) for x in ('train', 'test')}
  files['test.parquet'] = table(ids=records[1:])
  server.put('org/name', files)
  found = prepare(tmp_path, 'hf://datasets/org/name', level='id', field='ids')
  assert found.tokens('train').tolist() == ([1, 2, 3, 4, 5, 6] * 9)[:51]
  assert len(found.vocabulary) == 7


@pytest.mark.parametrize(
  'path, found',
  [
    ('hf://org/name', 'allowed: a local path, or hf://datasets/…'),
    ('hf://datasets/name', 'data.path is hf://datasets/name; allowed: hf://'),
    ('hf://datasets/org/no', 'does not exist or is private'),
    ('hf://datasets/org/name@no', 'there is no revision no'),
    ('hf://datasets/org/name', 'has README.md; allowed: .parquet'),
  ],
)
def test_what_is_refused(server, tmp_path, path, found):
  server.put('org/name', {'README.md': b''})
  assert found in refused(tmp_path, path)


def test_wikitext_where_its_addresses_fail(server, tmp_path, monkeypatch):
  agents = []

  def fail(url, headers, **_):
    agents.append(headers['User-Agent'])
    raise requests.ConnectionError('no route')

  monkeypatch.setattr(downloads.requests, 'get', fail)
  archive = builders.ARCHIVES['wt2']
  tokens = dict.fromkeys(SPLITS, 9 * 9)
  counted = dataclasses.replace(archive, tokens=tokens, symbols=6)
  monkeypatch.setitem(builders.ARCHIVES, 'wt2', counted)
  server.put('Salesforce/wikitext', texts('wikitext-2-v1') | texts('other'))
  found = asking.prepare('wt2', tmp_path)
  assert found.manifest['source']['dataset'].endswith('/wikitext-2-v1')
  entry = found.manifest['splits']['train']
  plain = ''.join(x or ' \n' for x in lines('train'))
  assert (entry['tokens'], entry['bytes']) == (81, len(plain))
  assert np.unique(found.tokens('test')).size == 5
  assert set(agents) == {'txl_jax/1.0.0'}
  monkeypatch.setitem(builders.ARCHIVES, 'wt2', archive)
  said = refusing.refused(asking.prepare, 'wt2', tmp_path, force=True)
  assert 'in train, but 2088628 are published' in said
  server.status = 503
  said = refusing.refused(asking.prepare, 'wt2', tmp_path, force=True)
  assert 'the Hub answers 503' in said and '; wt2 cannot be dow' in said


@pytest.mark.parametrize(
  'folder, level, chosen',
  [
    ('', 'byte', ['a.txt', 'b.txt', 'c.txt', 'meta.pkl']),
    ('/b.txt', 'byte', ['b.txt']),
    ('', 'id', ['d.npy', 'meta.pkl']),
  ],
)
def test_files_of_a_kind(server, folder, level, chosen):
  names = 'a.txt', 'b.txt', 'c.txt', 'd.npy', 'e.bin', 'meta.pkl'
  server.put('org/name', dict.fromkeys(names, b'x'))
  asked = Data('text', path=f'hf://datasets/org/name{folder}', level=level)
  assert finding.fetch(asked)[2] == chosen
