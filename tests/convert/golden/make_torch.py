"""Makes torch_*: files of torch.save in the forms that the codes have written.

  python make_torch.py

needs torch (made with 2.13). Modules and classes have the names of the original
code's and of NVIDIA's, and nothing in them but what a pickle keeps.

  torch_zip.pt, torch_old.pt      a state dict, in both forms of torch.save
  torch_module_zip.pt, …_old.pt   a whole module, as the original saves it
  torch_nvidia.pt                 a checkpoint as NVIDIA's code saves it
  torch_cache.pt                  a Corpus of the original code
  torch_vocab.bin                 the vocabulary of Hugging Face
  torch.npz                       the tensors of torch_zip.pt
"""

import argparse
import collections
import pathlib
import sys
import types
from unittest import mock

import numpy as np
import torch
from torch import nn

HERE = pathlib.Path(__file__).parent
SYMBOLS = ['<eos>', 'the', 'of', 'Straße', '<unk>', 'last']


def new_class(module, name, base=object):
  """A class that pickles as that of a module."""
  made = type(name, (base,), {'__module__': module})
  for parent in module.split('.')[0], module:
    sys.modules.setdefault(parent, types.ModuleType(parent))
  setattr(sys.modules[module], name, made)
  return made


def save(name, value, old=False):
  torch.save(value, HERE / name, _use_new_zipfile_serialization=not old)


def state():
  """Tensors of many types, strides and offsets; two share a storage."""
  weight = torch.randn(5, 4)
  many = torch.randn(6, 4)
  return collections.OrderedDict(
    weight=weight,
    tied=weight,
    transposed=torch.randn(3, 4).t(),
    rows=many[2:4],
    column=many[:, 1],
    half=torch.randn(3).half(),
    bfloat16=torch.randn(7).bfloat16(),
    double=torch.randn(2, dtype=torch.float64),
    long=torch.arange(5),
    int=torch.arange(3, dtype=torch.int32),
    short=torch.arange(3, dtype=torch.int16),
    char=torch.arange(-1, 2, dtype=torch.int8),
    byte=torch.arange(3, dtype=torch.uint8),
    bool=torch.tensor([True, False]),
    empty=torch.zeros(0, 3),
    scalar=torch.tensor(2.5),
    parameter=nn.Parameter(torch.randn(2, 2)),
  )


def model():
  """A module with the attributes of the original's, and few tensors."""
  made = new_class('mem_transformer', 'MemTransformerLM', nn.Module)()
  made.n_layer, made.cutoffs, made.same_length = 1, [2, 4], False
  made.r_w_bias = nn.Parameter(torch.randn(2, 3))
  made.word_emb = new_class('mem_transformer', 'AdaptiveEmbedding', nn.Module)()
  made.word_emb.div_val = 1
  made.word_emb.emb_layers = nn.ModuleList([nn.Embedding(6, 4)])
  made.word_emb.emb_projs = nn.ParameterList()
  made.pos_emb = new_class(
    'mem_transformer', 'PositionalEmbedding', nn.Module
  )()
  made.pos_emb.register_buffer('inv_freq', torch.randn(2))
  kind = new_class('proj_adaptive_softmax', 'ProjectedAdaptiveLogSoftmax',
                   nn.Module)  # fmt: skip
  made.crit = kind()
  made.crit.out_layers = nn.ModuleList([nn.Linear(4, 6)])
  made.crit.out_layers[0].weight = made.word_emb.emb_layers[0].weight
  made.layers = nn.ModuleList([nn.Sequential(nn.LayerNorm(4), nn.ReLU())])
  return made


def vocabulary(module):
  made = new_class(module, 'Vocab')()
  made.counter = collections.Counter(
    {'last': 1, 'of': 4, '<eos>': 9, 'the': 5, 'Straße': 3, '<unk>': 2}
  )
  made.special, made.min_freq, made.max_size = ['<eos>'], 0, None
  made.lower_case, made.delimiter, made.vocab_file = False, None, None
  made.idx2sym = [*SYMBOLS]
  made.sym2idx = collections.OrderedDict((s, i) for i, s in enumerate(SYMBOLS))
  made.eos_idx, made.unk_idx = 0, 4
  return made


def main():
  torch.manual_seed(0)
  tensors = state()
  save('torch_zip.pt', tensors)
  save('torch_old.pt', tensors, old=True)
  arrays = {
    k: (x.float() if x.dtype == torch.bfloat16 else x).detach().numpy()
    for k, x in tensors.items()
  }
  np.savez(HERE / 'torch.npz', **arrays)
  module = model()
  save('torch_module_zip.pt', module)
  # The older form has the source of each class beside it.
  source = ['class Any:\n'], 1, 'any.py'
  patch = mock.patch.object(torch.serialization, 'get_source_lines_and_file')
  with patch as get_source:
    get_source.return_value = source
    save('torch_module_old.pt', module, old=True)
  optimiser = torch.optim.Adam(module.parameters())
  checkpoint = {
    'args': argparse.Namespace(dataset='wt103', n_layer=1, cutoffs=[2, 4]),
    'model_config': {'n_token': 6, 'dtype': torch.float16, 'tie_projs': [True]},
    'model_state': module.state_dict(),
    'optimizer_state': optimiser.state_dict(),
    'vocab': vocabulary('utils.vocabulary'),
    'amp_state': None,
    'train_step': 7,
    'best_val_loss': np.float64(3.5),
  }
  save('torch_nvidia.pt', checkpoint)
  corpus = new_class('data_utils', 'Corpus')()
  corpus.dataset, corpus.vocab = 'wt103', vocabulary('vocabulary')
  corpus.train = corpus.valid = corpus.test = torch.arange(100) % 6
  save('torch_cache.pt', corpus, old=True)
  fields = vocabulary('vocabulary').__dict__
  fields['idx2sym'] = [s.encode().decode('latin-1') for s in SYMBOLS]
  fields['counter'] = collections.Counter()
  fields['sym2idx'] = collections.OrderedDict(
    (s, i) for i, s in enumerate(fields['idx2sym'])
  )
  save('torch_vocab.bin', fields, old=True)


if __name__ == '__main__':
  main()
