"""A folder whose matrices are of fp8, made of another one without torch."""

import json
import shutil

import checkpoint_files
import numpy


def write(folder, source):
    """Of the model in `source`: matrices of the blocks at random, with a scale each."""
    shutil.copytree(source, folder)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": None}
    (folder / "config.json").write_text(json.dumps(config))
    draw = numpy.random.default_rng(1)
    tensors = {}
    for name, dtype, _, bits in checkpoint_files.read_file(source / "model.safetensors"):
        if name.endswith("_proj.weight"):
            tensors[name] = "F8_E4M3", bits.shape, draw.integers(0, 0x38, bits.size, numpy.uint8).tobytes()
            tensors[name + "_scale_inv"] = "F32", [], numpy.float32(0.1).tobytes()
        else:
            tensors[name] = dtype, bits.shape, bits.tobytes()
    header, data = {}, b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
