// Edits like those in force at random other places: an effect alone says little. As inspect/controls.py draws them.
import { block } from "kit/blocks.js";
import { known, unique } from "kit/numbers.js";

/** The same numbers each time, from 0 to below 1 (mulberry32). */
function random(seed) {
  let state = seed;
  return () => {
    state = state + 0x6D2B79F5 | 0;
    let mixed = Math.imul(state ^ state >>> 15, 1 | state);
    mixed = mixed + Math.imul(mixed ^ mixed >>> 7, 61 | mixed) ^ mixed;
    return ((mixed ^ mixed >>> 14) >>> 0) / 2 ** 32;
  };
}

const nameOf = ({ kind, site, sites, head, query, key, how }) => kind === "token" ? `${sites.join(", ")}: no key ${key}` : kind === "head" ? `${site} head ${head}` : `${site}${known(head) ? ` head ${head}` : ""}: ${how} ${query} -> ${key}`;

/** Every place where an edit like this one could be: other heads, or open links, of sites of the same kind; other tokens at the same sites. */
function elsewhere(edit, sites) {
  if (edit.kind === "token") {
    const links = sites.filter(({ site }) => edit.sites.includes(site)).flatMap((site) => linksOf(site, "erase"));
    return unique(links.map(({ key }) => key)).map((key) => ({ ...edit, key }));
  }
  const { kind } = sites.find((site) => site.site === edit.site);
  return sites.filter((site) => site.kind === kind).flatMap((site) => {
    const heads = known(edit.head) ? [...Array(site.heads).keys()] : [edit.head];
    const links = edit.kind === "head" ? [{}] : linksOf(site, edit.how);
    return heads.flatMap((head) => links.map((link) => ({ ...edit, site: site.site, head, ...link })));
  });
}
/** The links that a site leaves open; one is forced only where its query has another key to lose. */
function linksOf({ shape: [queries, keys], hidden }, how) {
  const closed = hidden ? block(hidden).data : null;
  const open = (query) => [...Array(keys).keys()].filter((key) => !closed?.[query * keys + key]);
  return [...Array(queries).keys()].flatMap((query) => {
    const there = open(query);
    return how === "force" && there.length < 2 ? [] : there.map((key) => ({ query, key }));
  });
}

/** [{what, edits}]: at most so many sets of edits, each with as many of every kind; none where tokens are moved. */
export function drawControls(edits, sites, count) {
  if (!edits.length || edits.some((edit) => edit.kind === "place")) return [];
  const editNames = new Set(edits.map(nameOf));
  const pools = edits.map((edit) => elsewhere(edit, sites).filter((other) => !editNames.has(nameOf(other))));
  const draw = random(1);
  const controls = new Map();
  for (let tries = 0; tries < 40 * count && controls.size < count; tries += 1) {
    const drawn = new Map();
    for (const pool of pools) {
      const left = pool.filter((other) => !drawn.has(nameOf(other)));
      if (!left.length) return [];
      const other = left[Math.floor(draw() * left.length)];
      drawn.set(nameOf(other), other);
    }
    controls.set([...drawn.keys()].sort().join(), { what: [...drawn.keys()].join(", "), edits: [...drawn.values()] });
  }
  return [...controls.values()];
}
