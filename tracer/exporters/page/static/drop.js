const $ = (id) => document.getElementById(id);
const marked = []; // Indices of marked files, in the order in which they were marked

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
  return el("a", { href: page, target: "_blank", rel: "noreferrer" }, text);
}

function mark(index, isMarked) {
  const at = marked.indexOf(index);
  if (at >= 0) marked.splice(at, 1);
  if (isMarked) marked.push(index);
  $("compare").disabled = marked.length !== 2;
}

function addRow(name) {
  $("read").hidden = false;
  const state = el("span", { class: "quiet" }, "is read ...");
  const row = el("li", {}, el("span", { class: "name" }, name), state);
  $("files").append(row);
  return { row, state };
}

function fill({ row, state }, file) {
  const box = el("input", { type: "checkbox", "aria-label": `Mark ${file.name}`, onchange: () => mark(file.index, box.checked) });
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
    $("files").append(el("li", {}, el("span", { class: "name" }, name), link(page, "Open the comparison")));
  } catch (error) {
    complain(error.message);
  }
}

const dark = matchMedia("(prefers-color-scheme: dark)");
setTheme(dark.matches ? "dark" : "light");
dark.addEventListener("change", () => setTheme(dark.matches ? "dark" : "light"));
$("theme").addEventListener("click", () => setTheme(isDark() ? "light" : "dark"));
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
