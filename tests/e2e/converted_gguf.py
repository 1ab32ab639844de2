"""Runs llama.cpp's own converter: converted_gguf.py LLAMA_CPP PAIRS, of a folder with it and a list of [folder, file].

The vocabulary is given, for it is that of these tests alone, which the converter does not know; so is the way in which
transformers wrote a Granite 4's layers when the converter was made.
"""

import json
import logging
import pathlib
import sys

llama_cpp = pathlib.Path(sys.argv[1])
sys.path[1:1] = [str(llama_cpp), str(llama_cpp / "gguf-py")]
import conversion  # noqa: E402
import gguf  # noqa: E402
import torch  # noqa: E402
from conversion.base import TextModel  # noqa: E402
from conversion.mamba import Mamba2Model  # noqa: E402
from gguf_vocabulary import TOKENS, TYPES  # noqa: E402


TextModel.get_vocab_base = lambda self: (TOKENS, TYPES, "gpt-2")
TextModel._set_vocab_sentencepiece = TextModel._set_vocab_gpt2
Mamba2Model.set_vocab = TextModel._set_vocab_gpt2
logging.disable(logging.WARNING)
for folder, file in json.loads(sys.argv[2]):
    folder = pathlib.Path(folder)
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    # Gemma 3's rows without a token are left out by this.
    vocabulary = {"model": {"vocab": {token: i for i, token in enumerate(TOKENS)}, "merges": [["h", "e"]]}, "added_tokens": []}
    (folder / "tokenizer.json").write_text(json.dumps(vocabulary))
    config = folder / "config.json"
    if json.loads(config.read_text())["model_type"] == "granitemoehybrid":
        config.write_text(config.read_text().replace('"full_attention"', '"attention"'))
    with torch.inference_mode():
        hparams = conversion.ModelBase.load_hparams(folder, False)
        kind = conversion.get_model_class(conversion.get_model_architecture(hparams, conversion.ModelType.TEXT))
        kind(folder, gguf.LlamaFileType.ALL_F32, pathlib.Path(file)).write()
