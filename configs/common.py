"""Every key of a txl_jax config, with its default and what it means.

A config file calls `get_config()` and changes what its experiment needs; any
key is overridden on the command line, as in `--config.optim.lr=1e-3`. The
dict is locked: a key that is not listed here is an error.

Letters: B batch, T segment length, M memory length.
"""

import ml_collections


def get_config():
  """The defaults: the model is the base for overrides, not an experiment."""
  c = ml_collections.ConfigDict()
  c.seed = 0  # of initialisation, dropout and variable lengths
  # Which checkpoint eval, generate and export read: best, latest or a step.
  c.checkpoint = 'best'

  c.data = data = ml_collections.ConfigDict()
  # Bytes: pystdlib, enwik8, text8. Words: wt103, wt2, ptb, lm1b. Either: text.
  data.corpus = 'pystdlib'
  data.dir = 'data'  # holds the prepared corpora
  data.path = ''  # corpus text: the file or folder to learn from
  # enwik8: keep (205 symbols, every byte scored) or drop (the published
  # protocol: newlines vanish, 204 symbols, shorter splits).
  data.newline = 'keep'
  # Corpus text: byte, or word: white space separates words, the vocabulary is
  # counted on the training split, and the next five keys are for it.
  data.level = 'byte'
  data.lower = False  # lower-case the text
  data.eos = True  # every newline is the word <eos>
  # Add <unk>, for words outside, if the text has none; it is trained where some
  # words of the training split are left out, as with min_count 2.
  data.unk = False
  data.min_count = 1  # rarer words are left out of the vocabulary
  data.max_size = 0  # words of the vocabulary at most; 0 is no limit
  # A list, one word a line, as the vocabulary: of corpus text at level word;
  # of lm1b, which needs it when it is prepared.
  data.vocab_file = ''
  # lm1b: words <S> between two sentences. 1: n + 1 tokens of a sentence are
  # scored (PyTorch original); 2: n + 2, one of them trivial (TensorFlow).
  data.boundaries = 1

  c.model = model = ml_collections.ConfigDict()
  model.name = 'transformer_xl'
  model.n_layer = 12
  model.d_model = 512
  model.n_head = 8
  model.d_head = 64
  model.d_ff = 2048
  model.mem_len = 512  # M; 0 is a model without memory
  model.dropout = 0.1
  model.dropatt = 0.0  # of the attention probabilities
  # Of the embeddings and of the final states; -1 is as model.dropout.
  model.dropout_embed = -1.0
  model.dropout_final = -1.0
  # One mask for all positions of a segment (variational dropout); not in the
  # position table and the attention probabilities.
  model.locked_dropout = False
  # Of whole words: every occurrence in a batch, or in a part of it where
  # train.accumulate divides it.
  model.word_dropout = 0.0
  # Added to the loss of training: this times the mean square of the final
  # states, and of their changes from one position to the next.
  model.activation_reg = 0.0
  model.temporal_activation_reg = 0.0
  model.untie_biases = False  # u and v per layer instead of one pair for all
  model.pre_norm = False
  # off: a query sees all that causality allows. M: it sees M keys, itself
  # included (PyTorch original). M+1: one more (TensorFlow original).
  model.same_length = 'off'
  model.clamp_len = 0  # farther distances count as this one; 0 is off
  # empty: memory starts with no visible slot. zeros: with zero states that
  # are attended to (TensorFlow original, Hugging Face).
  model.memory_init = 'empty'
  model.tie_weights = True  # output weights are the embedding table
  # Adaptive embedding and softmax: the first token id of each tail of rarer
  # words, as (20000, 40000, 200000); () is a plain softmax.
  model.cutoffs = ()
  model.d_embed = 0  # width of the head's embeddings; 0 is d_model
  model.div_val = 1  # the words of tail i are div_val^i times narrower
  # Whether the output projection of each bin, the head first, is that of the
  # embedding; () is all of them apart.
  model.tie_projs = ()
  # ascending: the first logit behind the head's words stands for the first
  # tail (TensorFlow original, Hugging Face); descending: for the last one
  # (PyTorch original).
  model.tail_order = 'ascending'
  # Words drawn for a sampled softmax in training, without cutoffs; 0 is off.
  model.softmax_samples = 0
  model.init_std = 0.02
  model.proj_init_std = 0.01  # of the projections of embeddings
  model.ln_eps = 1e-5
  model.dtype = 'float32'  # compute dtype: float32 or bfloat16
  # Layers per iteration of the layer loop: all of them is fastest on CPU, 1
  # compiles fastest and is as fast on accelerators.
  model.unroll = 1
  # What a layer computes again in the backward pass instead of keeping it:
  # none, nothing; scores, all but the results of its projections; layer, all.
  model.remat = 'none'

  # The devices, as many as these multiplied: one of them may be -1, the rest.
  # Batches are divided over the first three, parameters over the last two.
  c.mesh = mesh = ml_collections.ConfigDict()
  mesh.slices = (
    1  # slices of TPUs or nodes of GPUs, with a slow network between
  )
  mesh.data = -1
  mesh.fsdp = 1  # parameters, gathered where they are used
  mesh.tensor = 1  # heads, feed-forward and vocabulary

  c.train = train = ml_collections.ConfigDict()
  train.steps = 400_000
  train.batch_size = 22  # B, over all devices
  train.segment_len = 512  # T
  # Parts of a batch whose gradients are summed before one update; each part
  # keeps its own memory, the result is that of the whole batch.
  train.accumulate = 1
  # Steps that one call of the device makes, for steps so short that calls take
  # time. steps, log_every, eval_every, save_every and the steps of a trace are
  # multiples of it. XLA may add in another order: figures agree to 1e-5.
  train.steps_per_dispatch = 1
  # Segment lengths drawn per step: T with probability 0.95, else T/2, plus
  # normal noise of deviation 5 (paper's code).
  train.varlen = False
  # auto: continue the run in workdir, or start one. must: continue or fail.
  # never: fail if workdir holds checkpoints.
  train.resume = 'auto'
  train.log_every = 100  # steps between two lines of the log
  train.eval_every = 4000  # steps; the last step is always evaluated
  train.eval_batch_size = 10  # streams that this evaluation reads at once
  train.eval_tokens = 0  # of the validation split, from its start; 0 is all
  train.save_every = 4000  # steps; a better evaluation is saved besides
  # Train on while a checkpoint is written; it takes the memory of a copy of
  # the state on the host until it is.
  train.async_checkpoints = True
  # Folder of programs that were compiled before, for a quicker start, on the
  # same device and jax alone; '' is none but JAX_COMPILATION_CACHE_DIR.
  train.compilation_cache = ''
  train.tensorboard = True  # write TensorBoard events into workdir
  # Seconds without a step, not counting compilation, evaluation and saving,
  # until a warning says which process and host is behind; 0 is off.
  train.stall_seconds = 0.0
  # At a loss or gradient that is not finite. stop: the run ends. skip: the
  # update is left out. rollback: the run goes on from the last checkpoint with
  # an empty memory and the batches after this one.
  train.nonfinite = 'stop'
  # skip: updates left out between two lines of the log; rollback: times in
  # the whole run. One more, and the run ends.
  train.nonfinite_limit = 5

  c.optim = optim = ml_collections.ConfigDict()
  optim.name = 'adam'  # adam or sgd
  optim.lr = 2.5e-4
  optim.b1 = 0.9  # adam
  optim.b2 = 0.999
  optim.eps = 1e-8
  optim.momentum = 0.0  # sgd
  # What moments and momentum are kept in: float32, or bfloat16, half as large
  # and rounded at random; the update is computed in float32 either way.
  optim.state_dtype = 'float32'
  optim.nesterov = False
  optim.clip = 0.25  # global norm of the gradient; 0 is off
  # Times lr, taken off matrices and embeddings in each step, not off biases
  # and norm scales; apart from the gradient, as AdamW does.
  optim.weight_decay = 0.0
  # cosine, inverse_sqrt, constant, or plateau: constant times plateau_factor
  # for each plateau_patience evaluations in a row without a better figure.
  optim.schedule = 'cosine'
  optim.warmup = 0  # steps of linear warm-up
  # cosine: whether it starts after the warm-up (TensorFlow original) or at
  # step 0 with the warm-up cutting its start off (PyTorch original).
  optim.cosine_shifted = False
  optim.lr_floor = 0.0  # as a share of lr, for cosine and plateau
  optim.plateau_factor = 0.5
  optim.plateau_patience = 1
  # Average of the parameters over steps, for evaluation, generation, export.
  # off: none. ema: moving average, its bias corrected. swa: mean over all
  # steps after average_start. nt: mean over all steps after an evaluation
  # worse than the best of those more than average_patience before it.
  optim.average = 'off'
  optim.ema_decay = 0.999
  optim.average_start = 0  # swa: a step above 0
  optim.average_patience = 5  # nt: evaluations

  # Trace of steps start to stop, both counted from 0 and stop left out, for
  # TensorBoard and Perfetto, into workdir/profile; stop 0 is off. The first
  # step of a run compiles: start at 10 or so.
  c.profile = profile = ml_collections.ConfigDict()
  profile.start = 0
  profile.stop = 0

  # The section eval is for --mode=eval; evaluation during training has the
  # T and M of training.
  c.eval = ev = ml_collections.ConfigDict()
  ev.split = 'validation'  # train, validation or test
  ev.batch_size = 1  # streams the split is cut into; 1 is exact
  ev.segment_len = 512  # T at test time
  ev.mem_len = 512  # M at test time
  ev.clamp_len = 0
  ev.same_length = 'off'
  # none: all tokens but the first are scored. eos: all, the first one after
  # an <eos> put before it; for words, but not for lm1b, which begins with <S>.
  ev.first_token = 'none'
  ev.segments_per_call = 16  # segments that one call of the device scores
  ev.nll_file = ''  # .npy file for the nll of each scored token

  c.generate = gen = ml_collections.ConfigDict()
  gen.prompt = ''
  gen.prompt_file = ''  # instead of prompt; - is standard input
  gen.max_new_tokens = 400
  gen.temperature = 1.0  # 0 takes the most probable token
  gen.top_k = 0  # sample among the k most probable; 0 is off
  gen.top_p = 1.0  # among the fewest that hold this probability
  # Above 1: tokens already seen become rarer. It divides logits above 0 and
  # multiplies others; with model.cutoffs these are log-probabilities.
  gen.repetition_penalty = 1.0
  gen.forbid_unk = False  # words: never write <unk>
  gen.seed = 0  # the same seed gives the same text
  gen.samples = 1
  gen.stream = True  # print as the text is made (with one sample)
  gen.segment_len = 128  # the prompt is read in pieces of this length
  gen.mem_len = 512  # M while generating
  gen.clamp_len = 0
  gen.same_length = 'off'
  return c.lock()
