from __future__ import annotations

from magneton_dist.diagnosis.calls import Call, Tensor, comparable
from magneton_dist.diagnosis.factors import argument_factors

IMAGE = Tensor((4, 8, 5, 6), (240, 30, 6, 1), "float32", "cpu")
LAST = Tensor((4, 8, 5, 6), (240, 1, 48, 8), "float32", "cpu")


def test_layouts_have_torchs_names():
    assert (IMAGE.layout, LAST.layout) == ("contiguous", "channels_last")
    assert Tensor((3, 4), (1, 3), "float32", "cpu").layout == "transposed"
    assert Tensor((3, 4), (9, 2), "float32", "cpu").layout == "strides [9, 2]"
    assert Tensor((3, 1), (1, 77), "float32", "cpu").layout == "contiguous"  # of one column any stride is right
    assert Tensor((3,), (1,), "bfloat16", "cpu", offset=3).layout == "contiguous, 6 bytes off alignment"
    assert Tensor((3,), (1,), "bfloat16", "cpu", offset=32).layout == "contiguous"


def convolution(image: Tensor, stride: int = 1) -> Call:
    weight = Tensor((8, 8, 3, 3), (72, 9, 3, 1), "float32", "cpu", parameter=True)
    arguments = ({"v": 0}, {"v": 1}, None, [stride, stride], [1, 1], [1, 1], False, [0, 0], 1)
    return Call("aten.convolution.default", arguments, (image, weight))


def test_arguments_that_differ_are_factors_by_their_names():
    a, b = convolution(IMAGE), convolution(LAST, stride=2)
    assert comparable(a, b)
    layout, stride = argument_factors(a, b)
    assert (layout.name, layout.values) == ("layout of input", ("contiguous", "channels_last"))
    assert (stride.name, stride.values) == ("stride", ("[1, 1]", "[2, 2]"))
    assert layout.flipped(a, b).tensors[0].stride == LAST.stride
    assert layout.flipped(a, b).arguments == a.arguments
    assert stride.flipped(layout.flipped(a, b), b) == b


def test_plain_arguments_are_told_as_one_types_them():
    def call(*plain: object) -> Call:
        return Call("aten.gelu.default", ({"v": 0}, *plain), (IMAGE,))

    def told(a: object, b: object) -> tuple[str, str]:
        (factor,) = argument_factors(call({"name": "x", "value": a}), call({"name": "x", "value": b}))
        return factor.values

    assert told("none", "tanh") == ("'none'", "'tanh'")
    assert told(None, [1, 2]) == ("None", "[1, 2]")
    assert told({"dtype": "float32"}, {"memory_format": "channels_last"}) == ("torch.float32", "torch.channels_last")
    assert told({"device": "cpu"}, {"literal": "'x'"}) == ("'cpu'", "'x'")
    assert told({"float": "inf"}, 1.5) == ('float("inf")', "1.5")


def test_calls_that_share_their_tensors_otherwise_cannot_be_compared():
    one = Call("aten.mul.Tensor", ({"v": 0}, {"v": 0}), (IMAGE,))
    two = Call("aten.mul.Tensor", ({"v": 0}, {"v": 1}), (IMAGE, IMAGE))
    assert not comparable(one, two)


def test_attention_is_made_again_by_the_call_that_chooses():
    flash = Call(
        "aten._scaled_dot_product_flash_attention_for_cpu.default",
        ({"v": 0}, {"v": 1}, {"v": 2}, 0.0, True, {"name": "scale", "value": 0.5}),
        (IMAGE, IMAGE, IMAGE),
    )
    chosen = flash.chosen_by()
    assert chosen is not None
    assert chosen.operator == "torch.nn.functional.scaled_dot_product_attention"
    assert chosen.arguments[:3] == ({"v": 0}, {"v": 1}, {"v": 2})
    options = {argument["name"]: argument["value"] for argument in chosen.arguments[3:]}
    assert options == {"dropout_p": 0.0, "is_causal": True, "scale": 0.5}
    assert convolution(IMAGE).chosen_by() is None


def test_a_call_is_read_from_its_row_with_tensors_numbered_by_first_mention():
    value = {"shape": [2, 3], "stride": [3, 1], "dtype": "float32", "device": "cpu", "offset": 0, "role": "activation"}
    row = {"name": "aten.addmm.default", "arguments": '[{"v":9},{"v":4},{"v":9},{"name":"beta","value":2}]'}
    call = Call.of(row, {4: value | {"role": "parameter"}, 9: value})
    assert call is not None
    assert call.arguments == ({"v": 0}, {"v": 1}, {"v": 0}, {"name": "beta", "value": 2})
    assert [tensor.parameter for tensor in call.tensors] == [False, True]
    assert call.tensors[0].layout == "contiguous"
    assert Call.of(row, {4: value}) is None
