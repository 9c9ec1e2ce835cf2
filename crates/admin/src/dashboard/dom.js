// Elements: made once, and changed only where something has changed. Text from the server is text,
// never markup.

const SVG = "http://www.w3.org/2000/svg";

/** The element of the page with this id. */
export const byId = (id) => document.getElementById(id);

/** Makes an element with attributes and children: elements, or text. */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) setAttribute(element, name, value);
  element.append(...children);
  return element;
}

/** Makes an element of a drawing. */
export function draw(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) setAttribute(element, name, value);
  element.append(...children);
  return element;
}

/** Sets the text of an element. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Sets an attribute; `null` and `false` remove it. */
export function setAttribute(element, name, value) {
  if (value === null || value === undefined || value === false) {
    if (element.hasAttribute(name)) element.removeAttribute(name);
  } else {
    const text = value === true ? "" : String(value);
    if (element.getAttribute(name) !== text) element.setAttribute(name, text);
  }
}

/** Shows or hides it. */
export const show = (element, isShown) => { if (element.hidden === isShown) element.hidden = !isShown; };

/** Children of each parent, by key. */
const shown = new WeakMap();

/**
 * Has `parent` show a child for each item, in their order. A child that was there stays, with its
 * focus. `create(item)` makes one, with `update(item)` as a property if it changes.
 */
export function list(parent, items, keyOf, create) {
  const before = shown.get(parent) ?? new Map();
  const now = new Map();
  let place = parent.firstChild;
  for (const item of items) {
    const key = keyOf(item);
    const child = before.get(key) ?? create(item);
    before.delete(key);
    now.set(key, child);
    child.update?.(item);
    if (child === place) place = place.nextSibling;
    else parent.insertBefore(child, place);
  }
  for (const child of before.values()) child.remove();
  shown.set(parent, now);
}

/** A cell of a table, with its column's name for narrow screens. */
export function cell(label, attributes = {}, ...children) {
  return make("td", { role: "cell", "data-label": label, ...attributes }, ...children);
}
