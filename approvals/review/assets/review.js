// What makes the pages nicer where scripts run; everything works without. Nothing but our own origin is asked.
"use strict";
(() => {
  const EVERY_MS = 4000;
  const SLOWER_MS = 30000;

  const span = (ms) => {
    let left = Math.max(0, Math.floor(ms / 1000));
    const parts = [];
    for (const [size, one, many] of [[86400, "day", "days"], [3600, "h", "h"], [60, "min", "min"], [1, "s", "s"]]) {
      const number = Math.floor(left / size);
      left -= number * size;
      if (number || parts.length) parts.push(number ? `${number} ${number === 1 ? one : many}` : "");
      if (parts.length === 2) break;
    }
    return parts.filter(Boolean).join(" ") || "0 s";
  };

  // The time that is left, by the gateway's clock and not by this machine's.
  const countDown = (ticket) => {
    const ends = ticket.querySelector("[data-until]");
    if (!ends) return;
    const ahead = Number(ticket.dataset.now) - Date.now();
    const until = Date.parse(ends.dataset.until);
    const tick = () => {
      const left = until - (Date.now() + ahead);
      ends.textContent = left > 0 ? `(${span(left)} left)` : "(over)";
      if (left > 0) setTimeout(tick, 1000);
    };
    tick();
  };

  // Again and again while somebody looks, slower while the gateway does not answer; `look` says whether to go on.
  const repeat = (look) => {
    let wait = EVERY_MS;
    const again = async () => {
      if (!document.hidden) {
        try {
          if (!(await look())) return;
          wait = EVERY_MS;
        } catch {
          wait = Math.min(wait * 2, SLOWER_MS);
        }
      }
      setTimeout(again, wait);
    };
    setTimeout(again, wait);
  };

  const tell = (text) => {
    const told = document.querySelector("[data-told]");
    told.textContent = text;
    told.className = "notice";
    told.hidden = false;
  };

  const ask = async (path, headers) => {
    const answer = await fetch(path, { headers, redirect: "manual", credentials: "same-origin", cache: "no-store" });
    if (answer.status === 304 || answer.ok) return answer;
    if (answer.type === "opaqueredirect") {
      tell("You are signed out. Load this page again to sign in.");
      return null;
    }
    throw new Error("no answer to use");
  };

  const keepFresh = (list) => {
    let tag = "";
    repeat(async () => {
      const answer = await ask(list.dataset.fresh, tag ? { "If-None-Match": tag } : {});
      if (!answer) return false;
      if (answer.status === 304) return true;
      const first = !tag;
      tag = answer.headers.get("etag") || "";
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (fresh.body.innerHTML.trim() === list.innerHTML.trim()) return true;
      const held = document.activeElement && list.contains(document.activeElement) ? document.activeElement.id : "";
      list.replaceChildren(...fresh.body.childNodes);
      if (held) document.getElementById(held)?.focus();
      const told = document.querySelector("[data-told]");
      if (told && !first) told.textContent = "The list has changed.";
      return true;
    });
  };

  // A page that somebody reads or writes on is never changed under them: it says that there is something new.
  const watch = (ticket) => {
    repeat(async () => {
      const answer = await ask(ticket.dataset.standing);
      if (!answer) return false;
      const stands = await answer.json();
      if (stands.digest === ticket.dataset.digest && stands.state === ticket.dataset.state) return true;
      const writes = [...ticket.querySelectorAll("textarea")].some((one) => one.value || one === document.activeElement);
      if (!writes && !ticket.querySelector("[data-deciding]")) location.reload();
      else ticket.querySelector("[data-told]").hidden = false;
      return false;
    });
  };

  const ticket = document.querySelector("[data-standing]");
  if (ticket) {
    countDown(ticket);
    watch(ticket);
  }
  const list = document.querySelector("[data-fresh]");
  if (list) keepFresh(list);
})();
