"""Training a tokenizer, with Rust's threads."""

import probe

from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.trainers import BpeTrainer

probe.imported("tokenizers")
tokenizer = Tokenizer(BPE(unk_token="[UNK]"))
tokenizer.pre_tokenizer = Whitespace()
words = ["a worker is lost", "the job goes on", "a machine comes back", "the rank is new"] * 50
tokenizer.train_from_iterator(words, BpeTrainer(vocab_size=60, special_tokens=["[UNK]"], show_progress=False))
probe.result("size", tokenizer.get_vocab_size())
probe.result("many", [one.ids for one in tokenizer.encode_batch(words)][:4])
probe.end()
