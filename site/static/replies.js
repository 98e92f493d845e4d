"use strict";
/* One reply at a time; the arrow keys go from round to round. */
(() => {
  const replies = [...document.querySelectorAll(".reply")];
  const links = [...document.querySelectorAll("nav.replies a")];

  const show = () => {
    const wanted = replies.find((reply) => `#${reply.id}` === location.hash) || replies[0];
    replies.forEach((reply, i) => {
      reply.hidden = reply !== wanted;
      if (reply === wanted) links[i].setAttribute("aria-current", "true");
      else links[i].removeAttribute("aria-current");
    });
  };

  for (const reply of replies) {
    const rounds = [...reply.querySelectorAll(".round")];
    rounds.forEach((round, i) => { round.tabIndex = i === 0 ? 0 : -1; });
    reply.addEventListener("keydown", (event) => {
      const at = rounds.indexOf(event.target);
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      const next = rounds[at + step];
      if (at < 0 || !step || !next) return;
      event.preventDefault();
      rounds[at].tabIndex = -1;
      next.tabIndex = 0;
      next.focus();
    });
  }
  addEventListener("hashchange", show);
  show();
})();
