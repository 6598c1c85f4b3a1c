"""Source text is read for what a compiler would see: comments never count, strings only where they are code."""

from __future__ import annotations

import pytest

from cleanroom.source_text import (
    Import,
    SourceText,
    condition,
    decorated,
    directives,
    imports,
    opcodes,
    possible_imports,
    variables,
)


def cuda(text: str) -> SourceText:
    return SourceText("kernel.cuh", text)


def python(text: str) -> SourceText:
    return SourceText("module.py", text)


@pytest.mark.parametrize(
    "text",
    [
        "// wgmma\nint x;",
        "/* wgmma\n wgmma */ int x;",
        "int x; // a\\\n wgmma\n",
        'call("// no comment", 1); // wgmma',
        "int n = 1'000'000; // wgmma 'quoted'",
        "char c = '\"'; /* wgmma \" */",
    ],
)
def test_comments_are_blanks_and_every_line_stays_where_it_was(text: str) -> None:
    source = cuda(text)
    assert "wgmma" not in source.text
    assert len(source.text) == len(text)
    assert source.text.count("\n") == text.count("\n")


def test_what_looks_like_a_comment_in_a_string_is_none() -> None:
    source = cuda('const char *url = "https://x"; tcgen05(); R"(\n// raw "text"\n)"; wgmma();')
    assert "https://x" in source.text
    assert '// raw "text"' in source.text
    assert "https" not in source.code
    assert "raw" not in source.code
    assert "tcgen05" in source.code
    assert "wgmma" in source.code


def test_a_docstring_of_python_does_not_count_and_other_strings_do() -> None:
    source = python('"""Uses is_ascend()."""\nSOURCE = r\'\'\'\n# kept: asm\n\'\'\'\nx = "# no comment"  # is_ascend()\n')
    assert "is_ascend" not in source.text
    assert "# kept: asm" in source.text
    assert '"# no comment"' in source.text


def test_each_instruction_of_an_asm_statement_is_found_on_its_line() -> None:
    source = cuda(
        'asm volatile(\n  "{.reg .pred p;\\n"\n  "setp.ne.b32 p, %4, 0;\\n\\t"\n  "@p tcgen05.mma.cta_group::1.kind::f16 [%0];}"\n'
        '  :: "r"(x));\n'
    )
    assert list(opcodes(source)) == [(3, "setp.ne.b32"), (4, "tcgen05.mma.cta_group::1.kind::f16")]


def test_macros_between_the_literals_of_an_asm_statement_do_not_end_it() -> None:
    source = cuda('asm("ld.global.L1::" HINT(x) ".v4.u64 {%0, %1}, [%2];" : "=l"(a) : "l"(b));')
    assert list(opcodes(source)) == [(1, "ld.global.L1::.v4.u64")]


@pytest.mark.parametrize(
    "text",
    [
        '// asm("wgmma.fence;");',
        'log("asm statements: wgmma.fence;");',
        'error("use tcgen05.mma instead");',
        'int asm_count(const char *s = "wgmma.fence;");',
        'asm("" : "=r"(x) : "r"(wgmma.fence));',
    ],
)
def test_an_instruction_in_a_comment_a_message_or_an_operand_is_none(text: str) -> None:
    assert list(opcodes(cuda(text))) == []


def test_inline_ptx_in_a_string_of_python_is_found() -> None:
    source = python("KERNEL = r'''\nvoid f() {\n  asm(\"cvt.rs.bf16x2.f32 %0, %1, %2, %3;\");\n}\n'''\n")
    assert list(opcodes(source)) == [(3, "cvt.rs.bf16x2.f32")]


@pytest.mark.parametrize(
    ("text", "arch", "holds"),
    [
        ("__CUDA_ARCH__ >= 1000", 1000, True),
        ("__CUDA_ARCH__ >= 1000", 900, False),
        ("(defined(__CUDA_ARCH__) && (__CUDA_ARCH__ >= 1000 && __CUDA_ARCH__ < 1200))", 1200, False),
        ("(defined(__CUDA_ARCH__) and (__CUDA_ARCH__ >= 900)) or defined(__CLION_IDE__)", 900, True),
        ("!defined(__CUDA_ARCH__)", 900, False),
        ("defined(OURS)", 1030, True),
        ("defined(OURS)", 1000, False),
        ("__CUDA_ARCH__ != 900 || OTHER > 3", 1000, True),
        ("__CUDA_ARCH__ == 900 && OTHER > 3", 1000, False),
        ("__CUDA_ARCH__ == 900 && OTHER > 3", 900, None),
        ("__CUDA_ARCH__", 900, True),
    ],
)
def test_a_condition_holds_for_the_architectures_that_it_names(text: str, arch: int, holds: bool | None) -> None:
    ours = condition("__CUDA_ARCH__ >= 1030")
    assert ours is not None
    found = condition(text, {"OURS": ours})
    assert found is not None
    assert found({"__CUDA_ARCH__": arch}) is holds


@pytest.mark.parametrize("text", ["__CUDA_ARCH__ >=", "a ? b : c", "", "import os", "("])
def test_what_is_no_condition_is_not_guessed_at(text: str) -> None:
    assert condition(text) is None


def test_a_condition_calls_nothing() -> None:
    found = condition("__import__('os').system('true') or print(1)")
    assert found is not None
    assert found({}) is None


def test_only_conditions_on_the_names_asked_for_are_given() -> None:
    source = cuda(
        "#if A > 1\n#ifdef __CUDA_ARCH__\n# if defined(X) && \\\n   __CUDA_ARCH__ < 900\n#ifndef X_ARCH\n// #if __CUDA_ARCH__\n"
    )
    assert list(directives(source, ("__CUDA_ARCH__",))) == [
        (2, "defined(__CUDA_ARCH__)"),
        (3, "defined(X) && __CUDA_ARCH__ < 900"),
    ]


def test_functions_under_a_compiler_are_found_with_a_target_that_is_fixed() -> None:
    source = python(
        "@tilelang.jit(\n    target='cuda',\n)\n@cache\ndef cast(x): ...\n\n@tilelang.jit\ndef rope(): ...\n\n# @tilelang.jit\ndef no(): ...\n"
    )
    found = [(d.line, d.name, d.target) for d in decorated(source, ("tilelang.jit",))]
    assert found == [(1, "cast", "cuda"), (7, "rope", "")]


def test_environment_variables_are_found_however_they_are_read() -> None:
    source = python(
        'import os\na = os.environ.get("A", 1)\nb = os.getenv(\n    "B")\nc = os.environ["C"]\nif "D" in os.environ: pass\n'
        'os.environ.setdefault("E", "x")\n# os.getenv("F")\nd = other.get("G")\n'
    )
    assert [name for _, name in variables(source)] == ["A", "B", "C", "D", "E"]
    assert [name for _, name in variables(cuda('get_env<int>("A"); std::getenv("B"); env.get<std::string>("C"); x("D");'))] == [
        "A",
        "B",
        "C",
    ]


def test_imports_say_when_they_run_and_those_of_a_type_checker_are_left_out() -> None:
    source = python(
        "import always, second.part\n"
        "from . import sibling\n"
        "if TYPE_CHECKING:\n    import checked\nelse:\n    import otherwise\n"
        "try:\n    import optional\nexcept ImportError:\n    import fallback\n"
        "try:\n    import needed\nfinally:\n    pass\n"
        "def f():\n    import late\n    try:\n        import perhaps\n    except Exception:\n        pass\n"
        "with x:\n    import inside\n"
    )
    assert list(imports(source)) == [
        Import(1, "always", "always"),
        Import(1, "second.part", "always"),
        Import(6, "otherwise", "under a condition"),
        Import(8, "optional", "if it is there"),
        Import(10, "fallback", "under a condition"),
        Import(12, "needed", "always"),
        Import(16, "late", "in a function"),
        Import(18, "perhaps", "if it is there"),
        Import(22, "inside", "always"),
    ]
    assert {i.module for i in imports(source)} <= set(possible_imports(source))


def test_a_file_that_this_python_cannot_read_has_no_imports_and_is_no_failure() -> None:
    assert list(imports(python("import a\nprint 'python 2'\n"))) == []
