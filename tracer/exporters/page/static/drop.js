"use strict";
(() => {
  const $ = (id) => document.getElementById(id);
  const marked = []; // Indices of marked files, in the order in which they were marked

  function setTheme(name) {
    document.documentElement.dataset.theme = name;
    $("theme").textContent = name === "dark" ? "Light" : "Dark";
    $("theme").setAttribute("aria-pressed", String(name === "dark"));
  }

  function element(name, options, ...children) {
    const made = Object.assign(document.createElement(name), options);
    made.append(...children);
    return made;
  }

  function complain(sentence) {
    $("problem").textContent = sentence;
    $("problem").hidden = !sentence;
  }

  async function asked(path, options) {
    const response = await fetch(path, options);
    const answer = await response.json();
    if (!response.ok) throw new Error([answer.error, answer.hint].filter(Boolean).join("\n"));
    return answer;
  }

  function link(page, text) {
    return element("a", { href: page, target: "_blank", rel: "noreferrer", textContent: text });
  }

  function mark(index, isMarked) {
    const at = marked.indexOf(index);
    if (at >= 0) marked.splice(at, 1);
    if (isMarked) marked.push(index);
    $("compare").disabled = marked.length !== 2;
  }

  function addRow(name) {
    $("read").hidden = false;
    const state = element("span", { className: "quiet", textContent: "is read ..." });
    const row = element("li", {}, element("span", { className: "name", textContent: name }), state);
    $("files").append(row);
    return { row, state };
  }

  function fill({ row, state }, file) {
    const box = element("input", { type: "checkbox" });
    box.setAttribute("aria-label", `Mark ${file.name}`);
    box.addEventListener("change", () => mark(file.index, box.checked));
    row.prepend(box);
    state.replaceWith(link(file.page, "Open its page"));
  }

  async function send(file) {
    const shown = addRow(file.name);
    try {
      const headers = { "X-File-Name": encodeURIComponent(file.name) };
      fill(shown, await asked("files", { method: "POST", headers, body: file }));
    } catch (error) {
      shown.state.className = "failed";
      shown.state.textContent = error instanceof TypeError ? "The program does not answer, or refused the file." : error.message;
    }
  }

  async function sendAll(files) {
    complain("");
    for (const file of files) await send(file);
  }

  async function compare() {
    complain("");
    try {
      const { name, page } = await asked("compare", { method: "POST", body: JSON.stringify({ files: marked }) });
      const row = element("li", {}, element("span", { className: "name", textContent: name }), link(page, "Open the comparison"));
      $("files").append(row);
    } catch (error) {
      complain(error.message);
    }
  }

  const dark = matchMedia("(prefers-color-scheme: dark)");
  setTheme(dark.matches ? "dark" : "light");
  dark.addEventListener("change", () => setTheme(dark.matches ? "dark" : "light"));
  $("theme").addEventListener("click", () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
  $("choose").addEventListener("change", () => sendAll([...$("choose").files]).then(() => ($("choose").value = "")));
  $("compare").addEventListener("click", compare);
  addEventListener("dragover", (event) => { event.preventDefault(); $("drop").classList.add("over"); });
  addEventListener("dragleave", () => $("drop").classList.remove("over"));
  addEventListener("drop", (event) => {
    event.preventDefault();
    $("drop").classList.remove("over");
    sendAll([...event.dataTransfer.files]);
  });
  asked("files").then((files) => files.forEach((file) => fill(addRow(file.name), file))).catch(() => {});
})();
