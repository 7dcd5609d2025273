from txl_jax.program import markdown


def test_a_name_that_is_markup():
  rows = [['<b>*a*', '[x](y)', 1, ''], ['a\nb', 'c\\|d', '', 2.5]]
  assert markdown.table(['', 'x', 'y', 'z'], rows).splitlines() == [
    '|  | x | y | z |',
    '| --- | ---: | ---: | ---: |',
    r'| \<b>\*a\* | \[x\](y) | 1 |  |',
    r'| a b | c\\\|d |  | 2.5 |',
  ]


def test_text_that_may_control_a_terminal():
  text = 'é `a`\n\n<b>\tc\r\x1b[1m\x85\n'
  assert markdown.code(text) == (
    '    é `a`\n\n    <b>\ufffdc\ufffd\ufffd[1m\ufffd\n'
  )
