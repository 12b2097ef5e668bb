"""The built-in model in the formats of the engines to compare with: the same values, of the same width.

    python tests/bench/peer_model.py FOLDER --llama-quantize PROGRAM

FOLDER/hf is a Hugging Face directory for vLLM, FOLDER/bf16.gguf what llama.cpp's own program makes of the GGUF file,
FOLDER/q4_1.gguf a link to that file.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from headstart.model.source import BUILT_IN, resolve_source
from headstart.model.weights import Checkpoint, open_checkpoint
from headstart.text.tokenizer import load_gguf

sys.path.insert(0, str(Path(__file__).parents[1]))
from service.model.smollm2 import write_hugging_face as write_weights

HF, BF16, Q4_1 = "hf", "bf16.gguf", "q4_1.gguf"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--llama-quantize", type=Path, help="Without it only FOLDER/hf is written.")
    options = parser.parse_args()
    source = resolve_source(BUILT_IN)
    write_directory(open_checkpoint(source), options.folder / HF)
    if options.llama_quantize is not None:
        link = options.folder / Q4_1
        link.unlink(missing_ok=True)
        link.symlink_to(source.resolve())
        command = [options.llama_quantize, "--allow-requantize", source, options.folder / BF16, "BF16"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    print(f"wrote {options.folder}", file=sys.stderr)


def write_directory(checkpoint: Checkpoint, folder: Path) -> None:
    """Weights in float32, their description, and the tokenizer without its chat template."""
    folder.mkdir(parents=True, exist_ok=True)
    write_weights(checkpoint, folder)
    assert checkpoint.gguf_metadata is not None
    document = json.loads(load_gguf(checkpoint.gguf_metadata).to_document())
    (folder / "tokenizer.json").write_text(json.dumps(document["tokenizer"]))
    tokenizer_config = {"tokenizer_class": "PreTrainedTokenizerFast", **document["special_tokens"]}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))


if __name__ == "__main__":
    main()
