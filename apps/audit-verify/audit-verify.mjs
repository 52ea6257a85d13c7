#!/usr/bin/env node
// Checks an export of Sluice's event log (node audit-verify.mjs FOLDER), or proofs of events, calls or lines of batches (node
// audit-verify.mjs PROOF…). It needs Node 20.12 or later and nothing else, and shares no code with Sluice, so that you can
// read all of it. Formats: RFC 8785 (canonical JSON), RFC 6962 (hash tree), c2sp.org/signed-note, tlog-checkpoint,
// tlog-tiles, tlog-proof.

import { createHash, createPublicKey, hash, verify } from 'node:crypto';
import { closeSync, existsSync, openSync, readFileSync, readSync, statSync } from 'node:fs';
import path from 'node:path';

/** What is wrong, and where. */
class Bad extends Error {}

/** `place`: a text, or a function that makes it. */
function fail(place, problem) {
  throw new Bad(`${typeof place === 'function' ? place() : place}: ${problem}`);
}

function ensure(isRight, place, problem) {
  if (!isRight) fail(place, problem);
}

const sha256 = (bytes) => hash('sha256', bytes, 'buffer');

function parseJson(text, place) {
  try {
    return JSON.parse(text);
  } catch {
    return fail(place, 'this is not JSON, or it is cut off');
  }
}

/** Base64 in its only correct form, so that no changed letter is ignored. */
function fromBase64(text, place) {
  const bytes = Buffer.from(String(text), 'base64');
  ensure(bytes.toString('base64') === text, place, 'this is not base64');
  return bytes;
}

function toHashes(texts, place) {
  const hashes = texts.map((text) => fromBase64(text, place));
  ensure(
    hashes.every(({ length }) => length === 32),
    place,
    'a hash of its proof has the wrong length',
  );
  return hashes;
}

/** The lines of a file, without line feeds. */
function* readLines(file) {
  const descriptor = openSync(file);
  const piece = Buffer.alloc(1_048_576);
  let rest = Buffer.alloc(0);
  for (let count; (count = readSync(descriptor, piece)) > 0;) {
    const bytes = Buffer.concat([rest, piece.subarray(0, count)]);
    let start = 0;
    for (let end; (end = bytes.indexOf(10, start)) !== -1; start = end + 1) yield bytes.subarray(start, end);
    rest = bytes.subarray(start);
  }
  closeSync(descriptor);
  if (rest.length > 0) yield rest;
}

// RFC 8785: sorted members, no white space, numbers and strings as ECMAScript writes them.
function canonical(value) {
  if (typeof value !== 'object' || value === null) return JSON.stringify(value);
  if (Array.isArray(value)) return `[${value.map(canonical).join(',')}]`;
  const members = Object.keys(value).sort();
  return `{${members.map((name) => `${JSON.stringify(name)}:${canonical(value[name])}`).join(',')}}`;
}

let scratch = Buffer.alloc(65_536);

/** Whether salt and value have this digest. The order of the file is canonical unless members have names like numbers. */
function hasDigest(value, salt, digest) {
  for (const format of [JSON.stringify, canonical]) {
    const text = format(value);
    if (scratch.length < text.length * 3 + salt.length) scratch = Buffer.alloc(text.length * 3 + salt.length);
    const start = scratch.write(salt, 0, 'hex');
    const end = start + scratch.write(text, start);
    if (hash('sha256', scratch.subarray(0, end)) === digest) return true;
  }
  return false;
}

// RFC 6962: the hash tree.

function hashLeaf(entry) {
  if (scratch.length <= entry.length) scratch = Buffer.alloc(entry.length * 2);
  scratch[0] = 0;
  scratch.set(entry, 1);
  return sha256(scratch.subarray(0, entry.length + 1));
}

const node = Buffer.alloc(65, 1);

function hashNode(left, right) {
  node.set(left, 1);
  node.set(right, 33);
  return sha256(node);
}

/** The root of a tree from its complete subtrees, from the largest to the smallest. */
const joinPeaks = (peaks) =>
  peaks.reduceRight((right, left) => (right ? hashNode(left, right) : left), null) ?? sha256(Buffer.alloc(0));

/** Computes the root over leaves that come one after the other. */
function createRoot() {
  const peaks = [];
  let count = 0;
  return {
    add(leaf) {
      let subtree = leaf;
      for (let rest = count; rest % 2 === 1; rest = (rest - 1) / 2) subtree = hashNode(peaks.pop(), subtree);
      peaks.push(subtree);
      count += 1;
    },
    peaks,
    root: () => joinPeaks(peaks),
  };
}

/** The root that a proof of inclusion leads to; null if it has the wrong length. */
function rootOfProof(leaf, index, size, siblings) {
  let [first, last, root] = [index, size - 1, leaf];
  const rest = [...siblings];
  while (last > 0) {
    const isRight = first % 2 === 1;
    if (isRight || first < last) {
      const sibling = rest.shift();
      if (sibling === undefined) return null;
      root = isRight ? hashNode(sibling, root) : hashNode(root, sibling);
    }
    [first, last] = [Math.floor(first / 2), Math.floor(last / 2)];
  }
  return rest.length === 0 && first === 0 ? root : null;
}

// Signed notes and checkpoints.

function parseKey(text) {
  const [, name = '', id, encoded = ''] = /^([^+\s]+)\+([0-9a-f]{8})\+(\S+)$/.exec(text.trim()) ?? [];
  const key = Buffer.from(encoded, 'base64');
  const isKey =
    key.length === 33 && key[0] === 1 && hash('sha256', Buffer.concat([Buffer.from(`${name}\n`), key])).startsWith(id);
  ensure(isKey, 'key', `${text.trim().slice(0, 80)} is not an Ed25519 verifier key`);
  const jwk = { kty: 'OKP', crv: 'Ed25519', x: key.subarray(1).toString('base64url') };
  return { name, id, publicKey: createPublicKey({ key: jwk, format: 'jwk' }) };
}

/** Checks the signatures of a checkpoint by the given keys, and returns what it says. */
function openCheckpoint(note, keys, place) {
  const end = note.lastIndexOf('\n\n') + 1;
  const text = note.slice(0, end);
  const [origin, size = '', root = ''] = text.split('\n');
  const [, name = origin, tree = '1'] = /^(.+)\/tree\/(\d+)$/.exec(origin) ?? [];
  ensure(end > 0 && /^\d{1,15}$/.test(size) && /^[\w+/]{43}=$/.test(root), place, 'this is not a checkpoint');
  const lines = note.slice(end + 1).split('\n');
  ensure(lines.pop() === '', place, 'its last line is cut off');
  const signatures = lines.map((line) => {
    const [, signer, encoded = ''] = /^— (\S+) (\S+)$/.exec(line) ?? fail(place, 'a line is not a signature');
    const bytes = fromBase64(encoded, place);
    const id = bytes.toString('hex', 0, 4);
    const key = keys.find((each) => each.name === signer && each.name === name && each.id === id);
    return key && verify(null, Buffer.from(text), key.publicKey, bytes.subarray(4));
  });
  const isSigned = signatures.includes(true) && !signatures.includes(false);
  ensure(isSigned, place, 'no signature by a given key is right');
  return { tree: Number(tree), size: Number(size), root: fromBase64(root, place), text };
}

/** Checks that an entry is in the tree of a checkpoint. */
function checkIncluded(entry, { index, proof }, checkpoint, place) {
  ensure(Array.isArray(proof) && index < checkpoint?.size, place, 'its place is not in a checkpoint');
  const root = rootOfProof(hashLeaf(entry), index, checkpoint.size, toHashes(proof, place));
  ensure(root?.equals(checkpoint.root), place, 'it was changed, or its proof does not give the root of the checkpoint');
}

// Events and their entries.

const describe = ({ tree, index, event }) => `event ${event?.event_id} (entry ${index} of tree ${tree})`;

/** The entry of an event in its tree. The members of the envelope are in canonical order. */
function makeEntry({ event, number, previous }) {
  const text = JSON.stringify(event);
  const workspace = JSON.stringify(event.workspace_id);
  const before = JSON.stringify(previous);
  return Buffer.from(
    `{"event_sha256":"${hash('sha256', text)}","number":${number},"previous":${before},"workspace_id":${workspace}}`,
  );
}

/**
 * Checks the digests of an event. A part without its salt must be named by an erasure, which has the SHA-256 of what it left.
 * Data that contains secrets can be withheld; what is shown of it is then not proved.
 */
function checkParts(item, { erasures, withheld }, place, names = ['data', 'metadata']) {
  for (const name of names) {
    const [value, salt, digest] = [item[name], item[`${name}_salt`], item.event[`${name}_sha256`]];
    if (typeof salt === 'string') {
      if (!/^[0-9a-f]{32}$/.test(salt) || !hasDigest(value, salt, digest))
        fail(place, `its ${name} does not have the digest ${name}_sha256`);
    } else if (name === 'data' && item.withheld === true) {
      withheld.set(item.event.type, (withheld.get(item.event.type) ?? 0) + 1);
    } else {
      const left = erasures.get(item.event.event_id)?.[`${name}_sha256`];
      if (typeof left !== 'string') fail(place, `the salt of its ${name} is missing, and no erasure names it`);
      if (!hasDigest(value, '', left)) fail(place, `its ${name} is not what its erasure left`);
    }
  }
}

/** Reads what was left of erased events from the data of the events that record erasures, in the order of the log. */
function readErasures(items, shown, check) {
  const erased = [];
  for (const item of items) {
    const place = () => `erasure, ${describe(item)}`;
    ensure(item.event?.type === 'user.events_erased', place, 'it is not the record of an erasure');
    check(item, makeEntry(item), place);
    // An erasure can itself be erased, and is then named by a later one.
    if (item.data_salt === null) erased.push(item);
    else checkParts(item, shown, place, ['data']);
    for (const { event_id: id, ...left } of item.data.events) shown.erasures.set(id, left);
  }
  for (const item of erased) checkParts(item, shown, () => `erasure, ${describe(item)}`, ['data']);
}

function describeWithheld({ withheld }) {
  const types = Array.from(withheld, ([type, count]) => `${count} ${type}`).join(', ');
  return withheld.size === 0
    ? []
    : [`Data with secrets was withheld. What is shown of it is not proved, only its digest: ${types}.`];
}

// Exports.

/** The lines of events.ndjson, each with its entry, between the two neighbours of the range, whose data is not shown. */
function* readEvents(folder, { before, after }, counts, onEvent) {
  const streams = new Map();
  const toItem = (item, place) => {
    item.entry = makeEntry(item);
    item.place = place;
    return item;
  };
  if (before) yield toItem(before, () => `manifest.json, before, ${describe(before)}`);
  let line = 0;
  for (const bytes of readLines(path.join(folder, 'events.ndjson'))) {
    line += 1;
    const at = line;
    const item = parseJson(bytes.toString(), `events.ndjson line ${at}`);
    const place = () => `events.ndjson line ${at}, ${describe(item)}`;
    checkParts(item, counts, place);
    const { stream_id: stream, stream_version: version, recorded_at: time } = item.event;
    const last = streams.get(stream) ?? { version: version - 1, time };
    if (version !== last.version + 1) fail(place, `version ${version} of ${stream} follows ${last.version}`);
    if (time < last.time)
      fail(place, `its time ${time} is before ${last.time}, that of the previous event of ${stream}`);
    streams.set(stream, { version, time });
    counts.events += 1;
    onEvent(item, place);
    yield toItem(item, place);
  }
  if (after) yield toItem(after, () => `manifest.json, after, ${describe(after)}`);
}

function tilePath(level, index, width) {
  const digits = String(index);
  const groups = digits.padStart(Math.ceil(digits.length / 3) * 3, '0').match(/.{3}/g);
  const place = groups.map((group, at) => (at < groups.length - 1 ? `x${group}` : group)).join('/');
  return `tile/${level}/${place}${width === 256 ? '' : `.p/${width}`}`;
}

function readTile(folder, level, index, width) {
  const file = tilePath(level, index, width);
  const place = path.join(path.basename(folder), file);
  ensure(existsSync(path.join(folder, file)), place, 'the file is missing');
  return { bytes: readFileSync(path.join(folder, file)), place };
}

/** The entries of a tree, in order. Compares its tiles with them, and its roots with the checkpoints. */
function* readTree(folder, { size, root }, older) {
  const levels = []; // The hashes of the unfinished tile of each level.
  const add = (level, digest) => {
    const tile = (levels[level] ??= { index: 0, hashes: [] });
    tile.hashes.push(digest);
    if (tile.hashes.length < 256) return;
    const { index } = tile;
    add(level + 1, finishTile(level));
    levels[level] = { index: index + 1, hashes: [] };
  };
  const peaksOver = (hashes) => {
    const tree = createRoot();
    for (const each of hashes) tree.add(each);
    return tree.peaks;
  };
  const finishTile = (level) => {
    const { index, hashes } = levels[level];
    const { bytes, place } = readTile(folder, level, index, hashes.length);
    if (!Buffer.concat(hashes).equals(bytes)) {
      const wrong = hashes.findIndex((each, at) => !each.equals(bytes.subarray(at * 32, at * 32 + 32)));
      fail(place, wrong === -1 ? 'it has the wrong length' : `its hash ${wrong} is not that of the entries`);
    }
    return peaksOver(hashes)[0];
  };
  // The tiles of the upper levels are to the left.
  const currentRoot = () => joinPeaks(levels.toReversed().flatMap(({ hashes }) => peaksOver(hashes)));
  for (let index = 0, bundle, at = 0; index < size; index += 1) {
    if (index % 256 === 0) {
      bundle = readTile(folder, 'entries', index / 256, Math.min(256, size - index));
      at = 0;
    }
    const start = at + 2;
    const end = start <= bundle.bytes.length ? start + bundle.bytes.readUInt16BE(at) : Infinity;
    if (end > bundle.bytes.length) fail(`${bundle.place}, entry ${index}`, 'the file is cut off');
    const entry = bundle.bytes.subarray(start, end);
    yield { index, entry, bundle };
    at = end;
    add(0, hashLeaf(entry));
    if (older?.size === index + 1) {
      const place = `the first ${older.size} entries`;
      ensure(currentRoot().equals(older.root), place, 'they do not have the root of the earlier checkpoint');
    }
  }
  for (const [level, { hashes }] of levels.entries()) if (hashes.length > 0) finishTile(level);
  ensure(currentRoot().equals(root), `${path.basename(folder)}/checkpoint`, 'its root is not that of the entries');
}

/** The first entry of a tree after the first one: the checkpoint of the tree before it, and how many entries the log kept. */
function readSuccession(folder, checkpoint, previous) {
  const { bytes, place } = readTile(folder, 'entries', 0, Math.min(256, checkpoint.size));
  const { kept, previous_checkpoint: note } = parseJson(bytes.subarray(2, 2 + bytes.readUInt16BE(0)), place);
  const isNext = typeof note === 'string' && note.startsWith(`${previous.text}\n`) && kept <= previous.size;
  ensure(isNext, place, `it does not name the checkpoint of tree ${previous.tree}`);
  return kept;
}

/** Compares the events with all entries: they are consecutive, and reach the limits of the range. */
function checkWhole(folder, manifest, checkpoints, older, counts, onEvent) {
  const events = readEvents(folder, manifest, counts, onEvent);
  let { value: next } = events.next();
  // Whether the next entry must be that of the next event.
  let isInside = !manifest.before;
  const heads = new Map();
  for (const [at, checkpoint] of checkpoints.entries()) {
    const treeFolder = (tree) => path.join(folder, 'trees', String(tree));
    const follower = checkpoints[at + 1];
    const kept = follower ? readSuccession(treeFolder(follower.tree), follower, checkpoint) : Infinity;
    const isOlder = older?.tree === checkpoint.tree;
    for (const { index, entry, bundle } of readTree(treeFolder(checkpoint.tree), checkpoint, isOlder && older)) {
      counts.entries += 1;
      if (index === 0 && at > 0) continue; // The succession.
      const place = () => `${bundle.place}, entry ${index}`;
      const isNext = next !== undefined && next.index === index && next.tree === checkpoint.tree;
      if (isNext && !next.entry.equals(entry))
        fail(next.place, 'the event is not the one that was sealed at its place');
      if (index >= kept) {
        if (isNext) fail(next.place, 'the log lost the event of this entry');
        continue;
      }
      const item = isNext ? next : parseJson(entry, place);
      const { number, previous } = item;
      const { workspace_id: workspace } = isNext ? next.event : item;
      const head = heads.get(workspace) ?? { number: 0, sha: null };
      if (number !== head.number + 1)
        fail(place, `its number in ${workspace} is ${number} instead of ${head.number + 1}`);
      if (previous !== head.sha) fail(place, 'it does not name the previous entry of its workspace');
      heads.set(workspace, { number, sha: hash('sha256', entry) });
      if (!isNext && isInside)
        fail(next?.place ?? 'events.ndjson', `the event of entry ${index} of tree ${checkpoint.tree} is missing`);
      if (!isNext) continue;
      ({ value: next } = events.next());
      isInside = next !== undefined || !manifest.after;
    }
  }
  if (next !== undefined) fail(next.place, 'the event is not in the tree, or not in its order');
}

/** Each entry of the workspace has a proof, and names the previous one. */
function checkWorkspace(folder, manifest, checkpoints, counts, onEvent) {
  // Without an earlier event, the first one is the first of the workspace.
  let head = manifest.before ? null : { number: 0, sha: null };
  for (const item of readEvents(folder, manifest, counts, onEvent)) {
    const { event, entry, tree, number, previous, place } = item;
    const workspace = manifest.workspace_id;
    if (event.workspace_id !== workspace) fail(place, `it belongs to ${event.workspace_id}`);
    if (head && number !== head.number + 1) fail(place, `number ${number} follows ${head.number}`);
    if (head && previous !== head.sha) fail(place, 'it does not name the previous entry of the workspace');
    head = { number, sha: hash('sha256', entry) };
    checkIncluded(entry, item, checkpoints[tree - 1], place);
    counts.entries += 1;
  }
}

/** Checks that the neighbours of the range are outside of its times. */
function checkRange({ from, to, before, after }) {
  const [start, end] = [before?.event.recorded_at, after?.event.recorded_at];
  ensure(start === undefined || (from !== null && start < from), 'manifest.json, before', 'it is in the time range');
  ensure(end === undefined || (to !== null && end > to), 'manifest.json, after', 'it is in the time range');
}

function checkFolder(folder, keys, options) {
  const read = (name) => {
    ensure(existsSync(path.join(folder, name)), name, 'the file is missing');
    return readFileSync(path.join(folder, name), 'utf8');
  };
  const manifest = parseJson(read('manifest.json'), 'manifest.json');
  const given = keys.length > 0 ? keys : read('key.txt').trim().split('\n').map(parseKey);
  const checkpoints = manifest.trees.map(({ tree, size }, at) => {
    const place = `trees/${at + 1}/checkpoint`;
    const checkpoint = openCheckpoint(read(place), given, place);
    ensure(checkpoint.tree === at + 1, place, `it is of tree ${checkpoint.tree}`);
    ensure(
      tree === at + 1 && size === checkpoint.size,
      'manifest.json',
      `tree ${at + 1} has ${checkpoint.size} entries`,
    );
    return checkpoint;
  });
  const isWhole = manifest.workspace_id === null;
  const older =
    options.checkpoint && openCheckpoint(readFileSync(options.checkpoint, 'utf8'), given, options.checkpoint);
  if (older) {
    ensure(isWhole, '--checkpoint', 'only an export of the whole log shows that it continues a checkpoint');
    const size = checkpoints[older.tree - 1]?.size ?? 0;
    ensure(size >= older.size, `tree ${older.tree}`, `it has ${size} entries, the earlier checkpoint ${older.size}`);
  }
  checkRange(manifest);
  const counts = { events: 0, entries: 0, erasures: new Map(), withheld: new Map() };
  let erasures = 0;
  const parseErasures = function* () {
    for (const bytes of readLines(path.join(folder, 'erasures.ndjson'))) {
      erasures += 1;
      yield parseJson(bytes.toString(), `erasures.ndjson line ${erasures}`);
    }
  };
  readErasures(parseErasures(), counts, (item, entry, place) =>
    checkIncluded(entry, item, checkpoints[item.tree - 1], place),
  );
  let last;
  const batchEvents = [];
  const seals = new Map();
  const onEvent = (item, place) => {
    const { recorded_at: time, stream_id: stream } = item.event;
    const isEarly = last === undefined && manifest.from !== null && time < manifest.from;
    if (isEarly) fail(place, 'it precedes the time range');
    last = { time, place };
    if (stream === options.batch) batchEvents.push(item);
    if (item.event.type === sealType) seals.set(item.event.event_id, item);
  };
  if (isWhole) checkWhole(folder, manifest, checkpoints, older, counts, onEvent);
  else checkWorkspace(folder, manifest, checkpoints, counts, onEvent);
  if (manifest.to !== null && last?.time > manifest.to) fail(last.place, 'it follows the time range');
  for (const [name, count] of [
    ['events', counts.events],
    ['erasures', erasures],
  ])
    ensure(count === manifest[name], `${name}.ndjson`, `it has ${count} ${name}, manifest.json says ${manifest[name]}`);
  const calls = checkCalls(folder, seals, manifest);
  const trees = checkpoints.map(({ tree, size }) => `tree ${tree} with ${size} entries`).join(', ');
  const isOpen = !isWhole && !manifest.after;
  return [
    `OK: ${counts.events} events, ${counts.entries} entries (${trees}).`,
    `Range: ${manifest.from ?? 'the beginning'} to ${manifest.to ?? 'the checkpoints'}, ${manifest.workspace_id ?? 'all workspaces'}.`,
    ...calls,
    ...(isOpen ? ['Nothing here shows that the workspace has no later event.'] : []),
    ...describeWithheld(counts),
    ...(keys.length > 0
      ? []
      : ['The key is that of the export. Compare it with the one that you received in another way.']),
    ...(options.batch === undefined ? [] : checkBatch(batchEvents, options)),
  ];
}

// Calls: an event of this type has the root over the records of its workspace, in the order of their IDs.

const sealType = 'request_log.calls_sealed';

/** Checks that the records of calls.ndjson are those that the events seal. Returns lines of text. */
function checkCalls(folder, seals, manifest) {
  const counts = { records: 0, withheld: 0, seals: 0 };
  let line = 0;
  let open;
  const close = ({ id, data, tree, leaves, first }) => {
    const place = `calls.ndjson lines ${first} to ${line}, seal ${id}`;
    ensure(leaves === data.records, place, `it has ${leaves} records or hashes instead of ${data.records}`);
    const problem = 'a record was changed: they do not have the root of the seal';
    ensure(tree.root().toString('hex') === data.root, place, problem);
    counts.seals += 1;
  };
  for (const bytes of readLines(path.join(folder, 'calls.ndjson'))) {
    const place = `calls.ndjson line ${line + 1}`;
    const { seal: id, record, leaf_sha256: leaf } = parseJson(bytes.toString(), place);
    if (open?.id !== id) {
      if (open) close(open);
      const sealed = seals.get(id);
      ensure(sealed, place, `no event of the export that seals calls has the ID ${id}`);
      seals.delete(id);
      open = { id, ...sealed, tree: createRoot(), leaves: 0, first: line + 1 };
    }
    line += 1;
    const isOther = record !== undefined && record.workspace_id !== open.event.workspace_id;
    ensure(!isOther, place, `it belongs to ${record?.workspace_id}`);
    ensure(record || /^[0-9a-f]{64}$/.test(leaf), place, 'it has neither a record nor a hash');
    open.tree.add(record ? hashLeaf(Buffer.from(canonical(record))) : Buffer.from(leaf, 'hex'));
    open.leaves += 1;
    if (record) counts.records += 1;
    else counts.withheld += 1;
  }
  if (open) close(open);
  for (const { data } of seals.values()) counts.withheld += data.records;
  const told = `it has ${counts.records} records, manifest.json says ${manifest.calls}`;
  ensure(counts.records === manifest.calls, 'calls.ndjson', told);
  if (counts.records + counts.withheld === 0) return [];
  const more = `${counts.withheld} more sealed calls are not in the export. Compare with the retention of the workspace.`;
  return [`OK: ${counts.records} calls of ${counts.seals} seals.`, ...(counts.withheld > 0 ? [more] : [])];
}

/** Checks the record of a call in a proof. Returns lines of text. */
function checkCall({ event, data, call }) {
  const { record, index, proof } = call;
  const place = `call ${record?.id}`;
  ensure(event.type === sealType, place, 'its event does not seal calls');
  const leaf = hashLeaf(Buffer.from(canonical(record)));
  const found = rootOfProof(leaf, index, data.records, toHashes(proof, place));
  const isRight = found?.toString('hex') === data.root && record.workspace_id === event.workspace_id;
  ensure(isRight, place, 'it was changed, or its proof does not give the root of the seal');
  return [`OK: ${place} is record ${index + 1} of ${data.records} of the seal.`, JSON.stringify(record)];
}

// Batches.

/** The numbers of the lines that an event settled: one bit for each from `first_line` on, the highest of a byte first. */
function settledLines({ chunks }) {
  const lines = [];
  for (const { first_line: first, settled } of chunks) {
    for (const [at, byte] of Buffer.from(settled, 'base64').entries())
      for (let bit = 0; bit < 8; bit += 1) if (byte & (0x80 >> bit)) lines.push(first + at * 8 + bit);
  }
  return lines.sort((a, b) => a - b);
}

/** The leaf of a result: the number of its line and the SHA-256 of its bytes. */
function hashResult(line, digest) {
  const leaf = Buffer.alloc(40);
  leaf.writeBigUInt64BE(BigInt(line));
  digest.copy(leaf, 8);
  return hashLeaf(leaf);
}

/** Compares files of a batch with the roots and digests in its events. */
function checkBatch(events, { batch, input, output, error }) {
  const data = (type) => events.find(({ event }) => type.test(event.type))?.data;
  const validated = data(/^batch\.validated$/);
  ensure(validated, batch, 'the export does not have its event batch.validated');
  const lines = [];
  if (input !== undefined) {
    const tree = createRoot();
    let count = 0;
    for (const bytes of readLines(input)) {
      if (/^[ \t\r]*$/.test(bytes.toString('latin1'))) continue;
      tree.add(hashLeaf(bytes));
      count += 1;
    }
    ensure(count === validated.line_count, input, `it has ${count} requests instead of ${validated.line_count}`);
    ensure(tree.root().toString('hex') === validated.input_root, input, 'it does not have the root input_root');
    lines.push(`OK: ${input} has the ${count} requests of ${batch}.`);
  }
  if (output === undefined && error === undefined) return lines;
  const end = data(/^batch\.(completed|cancelled|expired)$/);
  ensure(end, batch, 'the export does not have the event that ended it');
  const files = { output, error };
  for (const [name, file] of Object.entries(files))
    ensure(
      (file !== undefined) === (end[`${name}_file_id`] !== null),
      `--${name}`,
      'give every result file of the batch, and no other',
    );
  const settled = checkResults(events, files, batch, validated.line_count);
  for (const [name, file] of Object.entries(files).filter(([, each]) => each !== undefined)) {
    const whole = createHash('sha256');
    for (const bytes of readLines(file)) whole.update(bytes).update('\n');
    ensure(whole.digest('hex') === end[`${name}_sha256`], file, `it does not have the digest ${name}_sha256`);
  }
  return [...lines, `OK: the result files of ${batch} have the results of ${settled} settled lines.`];
}

/** Checks the root of every event that settled lines. Returns the number of lines. */
function checkResults(events, files, batch, total) {
  const owners = Array(total + 1);
  let settled = 0;
  for (const item of events.filter(({ event }) => event.type === 'batch.lines_settled')) {
    const numbers = settledLines(item.data);
    const settlement = { item, left: numbers.length, tree: createRoot() };
    for (const line of numbers) {
      ensure(line <= total && owners[line] === undefined, describe(item), `it settles line ${line}, which it cannot`);
      owners[line] = settlement;
    }
    settled += numbers.length;
  }
  const readers = Object.values(files)
    .filter((file) => file !== undefined)
    .map((file) => ({ file, lines: readLines(file), next: undefined }));
  for (const reader of readers) reader.next = reader.lines.next().value;
  for (let line = 1; line <= total; line += 1) {
    const start = `{"id":"batch_req_${hash('sha256', `${batch}:${line}`).slice(0, 32)}"`;
    const reader = readers.find(({ next }) => next?.toString('latin1', 0, start.length) === start);
    ensure(reader, batch, `line ${line} is missing from the files, or not in its order`);
    const owner = owners[line];
    owner?.tree.add(hashResult(line, sha256(reader.next)));
    if (owner !== undefined && (owner.left -= 1) === 0) {
      const isRight = owner.tree.root().toString('hex') === owner.item.data.results_root;
      const { length, [0]: first } = settledLines(owner.item.data);
      ensure(
        isRight,
        reader.file,
        `the ${length} results from line ${first} on do not have the root of ${describe(owner.item)}`,
      );
      owner.tree = null;
    }
    reader.next = reader.lines.next().value;
  }
  for (const { file, next } of readers) ensure(next === undefined, file, 'it has more lines than the batch');
  return settled;
}

// Proofs.

/** Checks the path of a line to the root in an event. Returns a description. */
function checkLine(
  { event, data, line_hash: digest, line_path: siblings, line_base64: content },
  { batch_id: batch, line },
  kind,
) {
  const place = `${kind} of line ${line}`;
  const type = kind === 'result' ? 'batch.lines_settled' : 'batch.validated';
  ensure(event.type === type && event.stream_id === batch, place, `its event is not ${type} of ${batch}`);
  const numbers = kind === 'result' ? settledLines(data) : null;
  const [index, size] = numbers ? [numbers.indexOf(line), numbers.length] : [line - 1, data.line_count];
  ensure(index >= 0 && index < size, place, 'its event does not have this line');
  if (digest === null || siblings === null) {
    ensure(digest === null && siblings === null && content === null, place, 'it is incomplete');
    return `The ${kind} is not proved, because its digest is not kept.`;
  }
  const bytes = content === null ? null : fromBase64(content, place);
  const found = bytes && (kind === 'result' ? sha256(bytes) : hashLeaf(bytes)).toString('hex');
  ensure(bytes === null || found === digest, place, 'its bytes do not have its digest');
  ensure(/^[0-9a-f]{64}$/.test(digest), place, 'its digest is malformed');
  const hashed = Buffer.from(digest, 'hex');
  const leaf = kind === 'result' ? hashResult(line, hashed) : hashed;
  const root = rootOfProof(leaf, index, size, toHashes(siblings, place));
  const wanted = kind === 'result' ? data.results_root : data.input_root;
  ensure(root?.toString('hex') === wanted, place, 'its path does not give the root in its event');
  if (bytes === null) return `The ${kind} is not kept, only its digest ${digest}.`;
  return `The ${kind}: ${bytes.length > 4_096 ? `${bytes.length} bytes with the digest ${digest}` : bytes.toString()}`;
}

const eventMembers = 'data data_salt erasures event metadata metadata_salt number previous withheld'.split(' ');
const lineMembers = ['line_base64', 'line_hash', 'line_path'];
const proofMembers = ['checkpoint', 'index', 'proof', 'tree'];

function requireMembers(item, names, place) {
  for (const name of Object.keys(item))
    ensure(names.includes(name), place, `it has the unknown member ${name.slice(0, 40)}`);
}

function checkProof(file, keys) {
  const text = readFileSync(file, 'utf8');
  const end = text.indexOf('\n\n');
  const [header, extra = '', index = '', ...proof] = text.slice(0, Math.max(end, 0)).split('\n');
  const isProof = header === 'c2sp.org/tlog-proof@v1' && extra.startsWith('extra ') && /^index \d{1,15}$/.test(index);
  ensure(isProof, file, 'this is not a proof of an event');
  ensure(keys.length > 0, '--key', 'a proof needs the key of the log');
  const shownText = fromBase64(extra.slice(6), `${file}, extra`).toString();
  const item = parseJson(shownText, `${file}, extra`);
  ensure(JSON.stringify(item) === shownText, `${file}, extra`, 'it was changed');
  const shown = { erasures: new Map(), withheld: new Map() };

  /** Checks an event that has a checkpoint and a proof. */
  const checkSealed = (each, entry, place) => {
    const checkpoint = openCheckpoint(String(each.checkpoint), keys, `${place}, checkpoint`);
    ensure(checkpoint.tree === each.tree, place, 'its checkpoint is of another tree');
    checkIncluded(entry, each, checkpoint, place);
  };
  const checkEvent = (each, place) => {
    readErasures(each.erasures ?? [], shown, (erasure, entry, at) => {
      requireMembers(erasure, [...eventMembers, ...proofMembers], at);
      checkSealed(erasure, entry, at);
    });
    checkParts(each, shown, () => place);
  };
  const isLine = 'batch_id' in item;
  if (isLine) requireMembers(item, ['batch_id', 'input', 'line', 'result'], `${file}, extra`);
  const main = isLine ? (item.result ?? item.input) : item;
  const place = `event ${main?.event?.event_id}`;
  ensure(main?.event, file, 'it has no event');
  requireMembers(main, [...eventMembers, ...(isLine ? lineMembers : ['call'])], place);
  checkEvent(main, place);
  const checkpoint = openCheckpoint(text.slice(end + 2), keys, `${file}, checkpoint`);
  checkIncluded(makeEntry(main), { index: Number(index.slice(6)), proof }, checkpoint, place);
  const lines = [`OK: ${place} is entry ${index.slice(6)} of tree ${checkpoint.tree}.`];
  if (isLine) {
    if (main !== item.input && item.input !== null) {
      requireMembers(item.input, [...eventMembers, ...lineMembers, ...proofMembers], 'input');
      checkEvent(item.input, 'input');
      checkSealed(item.input, makeEntry(item.input), `event ${item.input.event?.event_id}`);
    }
    ensure(shown.withheld.size === 0, file, 'data that it needs is withheld');
    lines[0] = `OK: line ${item.line} of ${item.batch_id} (${describe({ ...main, tree: checkpoint.tree, index: index.slice(6) })}).`;
    for (const kind of ['input', 'result'])
      lines.push(item[kind] === null ? `The ${kind} has no sealed event.` : checkLine(item[kind], item, kind));
    return lines;
  }
  const calls = item.call === undefined ? [] : checkCall(item);
  return [...lines, ...describeWithheld(shown), JSON.stringify(item.event), ...calls];
}

/** Checks an export or proofs. Returns whether all are right. */
function main(args) {
  const options = { key: [] };
  const targets = [];
  for (let at = 0; at < args.length; at += 1) {
    const [, name] = /^--(key|checkpoint|batch|input|output|error)$/.exec(args[at]) ?? [];
    if (name === 'key') options.key.push(args[(at += 1)] ?? '');
    else if (name !== undefined) options[name] = args[(at += 1)] ?? '';
    else targets.push(args[at]);
  }
  let isRight = targets.length > 0;
  if (!isRight) {
    console.error(
      'Usage: node audit-verify.mjs FOLDER [--key KEY] [--checkpoint FILE] [--batch ID --input FILE --output FILE --error FILE]\n' +
        '       node audit-verify.mjs PROOF… --key KEY',
    );
  }
  for (const target of targets) {
    const name = targets.length > 1 ? `${target}: ` : '';
    try {
      ensure(existsSync(target), target, 'it does not exist');
      const keys = options.key.map(parseKey);
      const lines = statSync(target).isDirectory() ? checkFolder(target, keys, options) : checkProof(target, keys);
      for (const line of lines) console.log(`${name}${line}`);
    } catch (error) {
      console.error(`NOT OK: ${name}${error instanceof Bad ? error.message : error.stack}`);
      isRight = false;
    }
  }
  return isRight;
}

process.exitCode = main(process.argv.slice(2)) ? 0 : 1;
