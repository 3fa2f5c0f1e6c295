// What a report does when it is touched: it plays scenes, zooms charts, copies the code, and turns dark. Nothing is fetched.
(() => {
  "use strict";
  const root = document.documentElement;
  const one = (name) => document.getElementById(name);
  const still = matchMedia("(prefers-reduced-motion: reduce)");
  const within = (low, value, high) => Math.min(Math.max(value, low), high);

  // The look: as the system has it, until the button is pressed.
  const theme = one("theme"), system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const said = () => theme.setAttribute("aria-pressed", String(isDark()));
  theme.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; said(); });
  system.addEventListener("change", said);
  said();

  // The player.
  const player = one("player");
  if (player) {
    const scenes = [...player.querySelectorAll(".scene")];
    const slider = one("slider"), play = one("play"), back = one("back"), next = one("next");
    const paths = { play: "M4 2.5v11l9-5.5z", pause: "M3 2.5h3.5v11H3zM9.5 2.5H13v11H9.5z" };
    let now = 0, timer = 0, flight = 0;

    const land = () => {
      cancelAnimationFrame(flight);
      player.querySelectorAll(".tokens").forEach((group) => group.remove());
    };
    const fly = (scene) => { // what is sent travels along its wire, once
      const wires = scene.querySelector(".wires");
      if (!wires || still.matches) return;
      const space = "http://www.w3.org/2000/svg", group = document.createElementNS(space, "g");
      group.setAttribute("class", "tokens");
      const tokens = [...wires.querySelectorAll("path")].map((path) => {
        const token = document.createElementNS(space, "rect");
        const tone = /^w(\d+)$/.exec(path.getAttribute("class"));
        token.setAttribute("class", "token box " + (tone ? "t" + tone[1] : "tn"));
        for (const [name, value] of [["x", -8], ["y", -5.5], ["width", 16], ["height", 11], ["rx", 3]]) token.setAttribute(name, value);
        group.append(token);
        return [token, path, path.getTotalLength()];
      });
      wires.parentNode.append(group);
      const start = performance.now(), length = 1600;
      const draw = (time) => {
        const share = within(0, (time - start) / length, 1), eased = share * share * (3 - 2 * share);
        for (const [token, path, whole] of tokens) {
          const point = path.getPointAtLength(eased * whole);
          token.setAttribute("transform", `translate(${point.x.toFixed(1)} ${point.y.toFixed(1)})`);
        }
        if (share < 1) flight = requestAnimationFrame(draw);
        else land();
      };
      flight = requestAnimationFrame(draw);
    };
    const show = (place) => {
      now = within(0, place, scenes.length - 1);
      land();
      scenes.forEach((scene, at) => scene.classList.toggle("on", at === now));
      const title = scenes[now].querySelector("h3").textContent, words = scenes[now].querySelector("p").textContent;
      slider.value = now + 1;
      slider.setAttribute("aria-valuetext", `${now + 1} of ${scenes.length}: ${title}`);
      one("count").textContent = `${now + 1} / ${scenes.length}`;
      back.disabled = now === 0;
      next.disabled = now === scenes.length - 1;
      if (!timer) one("status").textContent = `${title}. ${words}`;
      fly(scenes[now]);
    };
    const playing = (on) => {
      clearTimeout(timer);
      timer = 0;
      player.classList.toggle("playing", on);
      play.querySelector("span").textContent = on ? "Pause" : "Play";
      play.querySelector("path").setAttribute("d", on ? paths.pause : paths.play);
      if (on) timer = setTimeout(advance, scenes[now].hasAttribute("data-moves") ? 3000 : 2200);
    };
    const advance = () => {
      show(now + 1);
      playing(now < scenes.length - 1);
    };
    const toggle = () => {
      if (timer) return playing(false);
      if (now === scenes.length - 1) show(0);
      playing(true);
    };
    const go = (place) => { playing(false); show(place); };
    play.addEventListener("click", toggle);
    back.addEventListener("click", () => go(now - 1));
    next.addEventListener("click", () => go(now + 1));
    slider.addEventListener("input", () => go(Number(slider.value) - 1));
    const keys = {
      ArrowLeft: () => go(now - 1), ArrowUp: () => go(now - 1), ArrowRight: () => go(now + 1), ArrowDown: () => go(now + 1),
      Home: () => go(0), End: () => go(scenes.length - 1), " ": toggle,
    };
    document.addEventListener("keydown", (event) => {
      const here = player.contains(event.target), sideways = event.key === "ArrowLeft" || event.key === "ArrowRight";
      if (event.ctrlKey || event.metaKey || event.altKey || event.shiftKey || !keys[event.key]) return;
      if (!here && !(event.target === document.body && sideways)) return; // elsewhere keys scroll the page
      if (event.key === " " && event.target.tagName === "BUTTON") return; // which presses it
      event.preventDefault();
      keys[event.key]();
    });
    show(0);
  }

  // Charts: the field grows within its frame, and what was in the middle stays there.
  for (const chart of document.querySelectorAll(".chart")) {
    const frame = chart.querySelector(".lanes"), field = chart.querySelector(".field");
    const most = Number(chart.dataset.levels) - 1, button = (name) => chart.querySelector(`[data-do=${name}]`);
    const zoom = (level, at = 0.5) => {
      const before = Number(chart.dataset.zoom), after = within(0, level, most);
      const place = (frame.scrollLeft + at * frame.clientWidth) / 2 ** before;
      chart.dataset.zoom = after;
      field.style.setProperty("--zoom", 2 ** after);
      frame.scrollLeft = place * 2 ** after - at * frame.clientWidth;
      chart.querySelector("output").textContent = `${2 ** after}×`;
      button("in").disabled = after === most;
      button("out").disabled = button("all").disabled = after === 0;
    };
    const level = () => Number(chart.dataset.zoom);
    const does = { in: () => zoom(level() + 1), out: () => zoom(level() - 1), all: () => zoom(0) };
    for (const name of Object.keys(does)) button(name).addEventListener("click", does[name]);
    frame.addEventListener("keydown", (event) => {
      const name = { "+": "in", "=": "in", "-": "out", "0": "all" }[event.key];
      if (!name || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      does[name]();
    });
    frame.addEventListener("wheel", (event) => {
      if (!event.ctrlKey) return; // a wheel alone scrolls
      event.preventDefault();
      const box = frame.getBoundingClientRect();
      zoom(level() + (event.deltaY < 0 ? 1 : -1), within(0, (event.clientX - box.left) / box.width, 1));
    }, { passive: false });
  }

  // The code.
  const copy = one("copy");
  const old = (text) => { // where a page may not use the clipboard itself
    const field = document.createElement("textarea");
    field.value = text;
    field.setAttribute("aria-hidden", "true");
    field.style.position = "fixed";
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    copy.focus();
    return done;
  };
  let spoken = 0;
  copy.addEventListener("click", async () => {
    const text = one("source").textContent;
    let done;
    try { await navigator.clipboard.writeText(text); done = true; } catch { done = old(text); }
    const word = done ? "Copied" : "Select and copy by hand";
    copy.querySelector("span").textContent = word;
    one("copied").textContent = done ? "The code is copied." : word;
    clearTimeout(spoken);
    spoken = setTimeout(() => { copy.querySelector("span").textContent = "Copy"; one("copied").textContent = ""; }, 2500);
  });
})();
