// Links from lines of source to the reader's editor. The page has no absolute path of its own files: they are relative
// to the folder in which the program ran, and the reader says where that is, unless the page still lies below it.

const EDITORS = {
  none: { name: "no editor", link: () => null },
  vscode: { name: "VS Code", link: (path, line) => `vscode://file${path}${line ? `:${line}` : ""}` },
  pycharm: { name: "PyCharm", link: (path, line) => `pycharm://open?file=${path}${line ? `&line=${line}` : ""}` },
};

// What is kept between pages, where the browser keeps anything for a file.
const stored = {
  read(name) {
    try { return localStorage.getItem(`torch-timeline ${name}`); } catch { return null; }
  },
  write(name, value) {
    try { localStorage.setItem(`torch-timeline ${name}`, value); } catch { /* a page without storage asks again */ }
  },
};

const editor = { kind: "none", folder: "" };

// Where the program ran, if the page lies in a folder below it, as it does when a run has written it.
const folderOfPage = (up) => {
  if (up === null || location.protocol !== "file:") return "";
  const parts = decodeURIComponent(location.pathname).split("/").slice(0, -1);
  return parts.length > up ? parts.slice(0, parts.length - up).join("/") || "/" : "";
};

const startEditor = (up) => {
  const kind = stored.read("editor");
  Object.assign(editor, { kind: Object.hasOwn(EDITORS, kind ?? "") ? kind : "none", folder: folderOfPage(up) || stored.read("folder") || "" });
};

// A file as an absolute path with slashes; null for one that is not the reader's: a package's, or somebody's home.
const absolutePath = (file) => {
  if (/[\u0000-\u001f\u007f]/.test(file) || /^(site-packages\/|lib[\\/]python3|~|<|\/\/|cell \d)/.test(file)) return null;
  if (/^(\/|[A-Za-z]:[\\/])/.test(file)) return file;
  return /^(\/(?!\/)|[A-Za-z]:[\\/])/.test(editor.folder) && !/^[\w+.-]+:/.test(file) ? `${editor.folder.replace(/[\\/]$/, "")}/${file}` : null;
};

const editorLink = (file, line) => {
  const path = editor.kind === "none" ? null : absolutePath(file);
  if (path === null) return null;
  const parts = path.replace(/\\/g, "/").split("/").map(encodeURIComponent).join("/").replace(/^([A-Za-z])%3A/, "$1:");
  return EDITORS[editor.kind].link(parts.startsWith("/") ? parts : `/${parts}`, line);
};

// Links know their file, and are made again when another editor is chosen.
const linkSources = (root) => {
  for (const place of root.querySelectorAll("a.place")) {
    const href = editorLink(place.dataset.file, place.dataset.line);
    if (href) place.href = href;
    else place.removeAttribute("href");
  }
};

// The choice of an editor, and of the folder where its links need one.
const editorChoice = () => {
  const select = el("select", { "aria-label": "Open lines in" }, Object.entries(EDITORS).map(([kind, { name }]) => el("option", { value: kind }, kind === "none" ? "Open lines in \u2026" : `Open lines in ${name}`)));
  const folder = el("input", { type: "text", placeholder: "Folder of the sources, as /home/me/project", "aria-label": "Folder of the sources", value: editor.folder, spellcheck: "false" });
  const show = () => {
    select.value = editor.kind;
    folder.hidden = editor.kind === "none";
    linkSources(document.body);
  };
  select.addEventListener("change", () => {
    editor.kind = select.value;
    stored.write("editor", editor.kind);
    show();
    if (!folder.hidden && !folder.value) folder.focus();
  });
  folder.addEventListener("input", () => {
    editor.folder = folder.value.trim();
    stored.write("folder", editor.folder);
    linkSources(document.body);
  });
  show();
  return [select, folder];
};
