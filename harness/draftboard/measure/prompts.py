"""From a task's words to the target's token ids, and from ids back to words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from draftboard.errors import UserError
from draftboard.record.tasks import Task


class Template:
    """The one way a run turns a conversation into ids."""

    def __init__(self, tokenizer: Any, task: Task) -> None:
        if tokenizer is None:
            raise UserError("the target has no tokenizer files; a task of text needs one beside the weights")
        if task.template == "target" and not tokenizer.chat_template:
            raise UserError(
                f"the target's tokenizer has no chat template, which task {task.name!r} asks for;"
                ' set template = "raw" in its task.toml'
            )
        self._tokenizer, self._task = tokenizer, task

    def ids(self, questions: Sequence[str], replies: Sequence[str]) -> list[int]:
        """The ids of a conversation that waits for the next reply: one more question than replies."""
        if self._task.template == "raw":
            text = "\n".join(part for pair in zip(questions, [*replies, ""], strict=True) for part in pair)
            return list(self._tokenizer(text.removesuffix("\n"))["input_ids"])
        messages = (
            [{"role": "system", "content": self._task.system_prompt}] if self._task.system_prompt else []
        )
        for question, reply in zip(questions, [*replies, None], strict=True):
            messages.append({"role": "user", "content": question})
            if reply is not None:
                messages.append({"role": "assistant", "content": reply})
        thinking = {} if self._task.thinking is None else {"enable_thinking": self._task.thinking}
        return list(
            self._tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, return_dict=False, **thinking
            )
        )

    def text(self, ids: Sequence[int]) -> str:
        """A reply's words, without the tokens that only steer."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))

    def pieces(self, ids: Sequence[int]) -> tuple[str, ...]:
        """The text each id adds; joined they are the whole. A character spread over ids goes to its last."""
        pieces, start, shown = [], 0, 0
        for end in range(1, len(ids) + 1):
            before = self._tokenizer.decode(list(ids[start:shown]))
            now = self._tokenizer.decode(list(ids[start:end]))
            if now.endswith("\ufffd") and end < len(ids):
                pieces.append("")
                continue
            pieces.append(now[len(before) :])
            start, shown = shown, end
        return tuple(pieces)

    def piece(self, token: int) -> str:
        """One id's text by itself."""
        return str(self._tokenizer.decode([token]))
