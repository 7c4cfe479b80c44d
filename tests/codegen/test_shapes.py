"""Comments above functions say the dimensions of what they read, and the statements that cut them."""

from ssdsl.codegen.role import role_file
from ssdsl.codegen.scope import Common, FileScope
from ssdsl.codegen.shapes import shape_lines
from ssdsl.compile import compile_source
from ssdsl.text.source import Source
from tests.captured import graph_of

PLAN = """\
mesh gpus(dp = 2, tp = 2)
split model by batch into dp, m = 2
split model by heads into tp
assign model to gpus
"""
LAYER = """
# x                       [batch/dp/m 2, seq 64, hidden 128]
# ln_1.weight and 5 more  [hidden 128]
# attn.c_attn.bias        [qkv·heads/tp·head_dim 192]
# attn.c_attn.weight      [hidden 128, qkv·heads/tp·head_dim 192]
# attn.c_proj.weight      [heads/tp·head_dim 64, hidden 128]
# mlp.c_fc.bias           [ffn 512]
# mlp.c_fc.weight         [hidden 128, ffn 512]
# mlp.c_proj.weight       [ffn 512, hidden 128]
# plan.ssp:2: split model by batch into dp, m = 2
# plan.ssp:3: split model by heads into tp
# plan.ssp:4: assign model to gpus
def transformer_h(x, weights, prefix, m):
"""


def test_a_layer() -> None:
    program = compile_source(Source("plan.ssp", PLAN), graph_of("gpt:tiny,layers=4"), {}, None).program
    code = role_file(FileScope(Common(program), program.roles[0])).text
    assert LAYER in code


def test_shapes_of_layers_that_share_a_function() -> None:
    shapes = {"x": ["[batch 2]", "[batch 2]"], "weight": ["[hidden 4]", "[ffn 4]"], "bias": ["[hidden 4]", "[ffn 4]"]}
    assert [*shape_lines(shapes)] == ["# x             [batch 2]", "# weight, bias  [hidden 4] or [ffn 4]"]
