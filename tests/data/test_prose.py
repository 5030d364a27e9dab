"""What is kept of a docstring, and what is not."""

import pytest

from chimera.data.corpus.prose import is_prose, paragraphs

EVERYTHING = """
    Return the weights of the layer, in the order in which they were added.

    This is a longer paragraph with ``code``, a :class:`~torch.nn.Module`, a `link
    <https://example.org>`_ and *emphasis*, which all become plain words [1]_.

    .. note::

        A note is prose, too, and so its indented text stays with us.

    .. versionadded:: 1.2
        It is possible to give more than one of them at once.

    .. code-block:: python

        The code in this block could be read as if it were English.

    Here is a list of things that the function does for you::

        This literal block would also read as a sentence of English.

    - It reads the file from the disk, line by line.
    - It writes
      what it has read into a file of the same name.

    Parameters
    ----------
    weights : array_like
        The weights of the layer, as they are when it is called.

    Notes
    -----
    The weights are stored in the order in which they were added.

    +------+-----------------------------------------------+
    | name | What this cell says is a sentence in English. |
    +------+-----------------------------------------------+

    >>> print("This is an example of what the function can do.")
    This is an example of what the function can do.

    Args:
        weights (list): The weights of the layer, as they are when it is called.

    :param weights: The weights of the layer, as they are when it is called.

    Even more of it can be found in the manual of the library.
"""


def test_keeps_running_text_only() -> None:
    assert paragraphs(EVERYTHING) == [
        "Return the weights of the layer, in the order in which they were added.",
        "This is a longer paragraph with code, a Module, a link and emphasis, which all become"
        " plain words.",
        "A note is prose, too, and so its indented text stays with us.",
        "It is possible to give more than one of them at once.",
        "Here is a list of things that the function does for you:",
        "It reads the file from the disk, line by line.",
        "It writes what it has read into a file of the same name.",
        "The weights are stored in the order in which they were added.",
        "Even more of it can be found in the manual of the library.",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "Too short to tell.",
        "this starts in the middle of a sentence that was cut.",
        "This one never comes to an end and so is",
        "Set x = 3 and then it is done with all of them.",
        "See https://example.org for more of what it is about.",
        "Linear Conv2d BatchNorm ReLU MaxPool Flatten Linear Softmax Dropout.",
        "Der Hund lief über die Wiese und kam nicht mehr nach Hause.",
    ],
)
def test_refuses_what_is_no_english_sentence(text: str) -> None:
    assert not is_prose(text)
