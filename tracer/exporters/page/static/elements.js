// Elements and the theme, for every page. Text goes into the page as text nodes.

// An element: attributes by name, `on...` functions as listeners, children as elements or text.
const el = (tag, attributes = {}, ...children) => {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(element.style, value);
    else if (typeof value === "boolean" && name.startsWith("aria-")) element.setAttribute(name, String(value));
    else if (value === true) element.setAttribute(name, "");
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
};

const button = (label, title, onclick, spoken = null) => el("button", { type: "button", class: "button", title, "aria-label": spoken, onclick }, label);

const isDark = () => document.documentElement.dataset.theme === "dark";
const setTheme = (theme) => {
  document.documentElement.dataset.theme = theme;
  const element = document.getElementById("theme");
  element.setAttribute("aria-pressed", theme === "dark");
  element.textContent = theme === "dark" ? "Light" : "Dark";
  element.setAttribute("aria-label", `Switch to ${theme === "dark" ? "light" : "dark"} colours`);
};
