#!/usr/bin/env node
// Checks an export of Sluice's event log (node audit-verify.mjs FOLDER) or the proof of one event or call (node
// audit-verify.mjs PROOF). It needs Node 20.12 or later and nothing else, and shares no code with Sluice, so that you can read all of it.
// Formats: RFC 8785 (canonical JSON), RFC 6962 (hash tree), c2sp.org/signed-note, tlog-checkpoint, tlog-tiles, tlog-proof.

import { createPublicKey, hash, verify } from 'node:crypto';
import { createReadStream, existsSync, readFileSync, statSync } from 'node:fs';
import path from 'node:path';
import { createInterface } from 'node:readline';

/** What is wrong, and where. */
class Bad extends Error {}

function ensure(isRight, place, problem) {
  if (!isRight) throw new Bad(`${place}: ${problem}`);
}

const sha256 = (...parts) =>
  hash('sha256', parts.length === 1 ? parts[0] : Buffer.concat(parts.map((part) => Buffer.from(part))), 'buffer');
const hex = (bytes) => bytes.toString('hex');

function parseJson(text, place) {
  try {
    return JSON.parse(text);
  } catch {
    throw new Bad(`${place}: this is not JSON, or it is cut off`);
  }
}

// RFC 8785: sorted members, no white space, numbers and strings as ECMAScript writes them.
function canonical(value) {
  if (typeof value !== 'object' || value === null) return JSON.stringify(value);
  if (Array.isArray(value)) return `[${value.map(canonical).join(',')}]`;
  const members = Object.keys(value).sort();
  return `{${members.map((name) => `${JSON.stringify(name)}:${canonical(value[name])}`).join(',')}}`;
}

/** Whether a value has this digest. The order of the file is canonical unless members have names like numbers. */
const hasDigest = (value, salt, digest) =>
  [JSON.stringify, canonical].some((format) => hex(sha256(Buffer.from(salt, 'hex'), format(value))) === digest);

// RFC 6962: the hash tree.
const leafPrefix = Buffer.of(0);
const nodePrefix = Buffer.of(1);
const hashLeaf = (entry) => sha256(leafPrefix, entry);
const hashNode = (left, right) => sha256(nodePrefix, left, right);

/** The root over hashes: pairs from the left, an odd last one moves up. */
function rootOf(hashes) {
  let level = hashes;
  while (level.length > 1) {
    const next = [];
    for (let at = 0; at < level.length; at += 2) {
      next.push(at + 1 < level.length ? hashNode(level[at], level[at + 1]) : level[at]);
    }
    level = next;
  }
  return level[0] ?? sha256();
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
  const isKey = key.length === 33 && key[0] === 1 && hex(sha256(`${name}\n`, key).subarray(0, 4)) === id;
  ensure(isKey, 'key', `${text.trim().slice(0, 80)} is not an Ed25519 verifier key`);
  const jwk = { kty: 'OKP', crv: 'Ed25519', x: key.subarray(1).toString('base64url') };
  return { name, id, publicKey: createPublicKey({ key: jwk, format: 'jwk' }) };
}

/** Checks the signature of a checkpoint, and returns what it says. */
function openCheckpoint(note, keys, place) {
  const end = note.lastIndexOf('\n\n') + 1;
  const text = note.slice(0, end);
  const [origin, size = '', root = ''] = text.split('\n');
  const [, name = origin, tree = '1'] = /^(.+)\/tree\/(\d+)$/.exec(origin) ?? [];
  ensure(end > 0 && /^\d+$/.test(size) && /^[\w+/]{43}=$/.test(root), place, 'this is not a checkpoint');
  const signatures = note
    .slice(end + 1)
    .split('\n')
    .map((line) => /^— (\S+) (\S+)$/.exec(line));
  const isSigned = signatures.some((match) => {
    const bytes = Buffer.from(match?.[2] ?? '', 'base64');
    const key = keys.find((each) => each.name === match?.[1] && each.id === hex(bytes.subarray(0, 4)));
    return key?.name === name && verify(null, Buffer.from(text), key.publicKey, bytes.subarray(4));
  });
  ensure(isSigned, place, 'no signature by a given key is right');
  return { tree: Number(tree), size: Number(size), root: Buffer.from(root, 'base64') };
}

// Events and their entries.

/** Checks the digests of an event, and returns its entry, and whether data and metadata were shown with their salts. */
function makeEntry({ event, data, data_salt, metadata, metadata_salt, number, previous }, place) {
  const parts = { data: [data, data_salt], metadata: [metadata, metadata_salt] };
  for (const [name, [value, salt]] of Object.entries(parts)) {
    // Without the salt, a part of the value was erased or withheld, and only the digest is proved.
    const isRight = salt === null || hasDigest(value, salt, event[`${name}_sha256`]);
    ensure(isRight, place, `its ${name} does not have the digest ${name}_sha256`);
  }
  const eventSha256 = hex(sha256(canonical(event)));
  const entry = Buffer.from(
    canonical({ event_sha256: eventSha256, number, previous, workspace_id: event.workspace_id }),
  );
  return { entry, isWhole: data_salt !== null && metadata_salt !== null };
}

const placeOf = ({ tree, index, event }, line) =>
  `events.ndjson line ${line}, event ${event?.event_id} (entry ${index} of tree ${tree})`;

/** The lines of events.ndjson, each with its entry. */
async function* readEvents(folder, counts) {
  const streams = new Map();
  let line = 0;
  for await (const text of createInterface({
    input: createReadStream(path.join(folder, 'events.ndjson')),
    crlfDelay: Infinity,
  })) {
    line += 1;
    const item = parseJson(text, `events.ndjson line ${line}`);
    const place = placeOf(item, line);
    const { entry, isWhole } = makeEntry(item, place);
    const { stream_id: stream, stream_version: version, recorded_at: time } = item.event;
    const before = streams.get(stream) ?? { version: version - 1, time };
    ensure(version === before.version + 1, place, `version ${version} of ${stream} follows ${before.version}`);
    ensure(
      time >= before.time,
      place,
      `its time ${time} is before ${before.time}, that of the previous event of ${stream}`,
    );
    streams.set(stream, { version, time });
    counts.events += 1;
    if (!isWhole) counts.partial += 1;
    if (item.event.type === sealType && item.data_salt !== null) counts.seals.set(item.event.event_id, item.data);
    yield { ...item, entry, place };
  }
}

// Whole logs: all entries are in the folder.

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

/** The entries of a tree, in order. Compares its tiles with them, and its root with the checkpoint. */
function* readTree(folder, { size, root }, older) {
  const levels = [];
  const add = (level, hash) => {
    const { index, hashes } = (levels[level] ??= { index: 0, hashes: [] });
    hashes.push(hash);
    if (hashes.length < 256) return;
    compareTile(level);
    levels[level] = { index: index + 1, hashes: [] };
    add(level + 1, rootOf(hashes));
  };
  const compareTile = (level) => {
    const { index, hashes } = levels[level];
    if (hashes.length === 0) return;
    const { bytes, place } = readTile(folder, level, index, hashes.length);
    const wrong = hashes.findIndex((hash, at) => !hash.equals(bytes.subarray(at * 32, at * 32 + 32)));
    ensure(wrong === -1, place, `its hash ${wrong} is not that of the entries`);
    ensure(bytes.length === hashes.length * 32, place, 'it has the wrong length');
  };
  const peaks = []; // Complete subtrees, from the largest to the smallest.
  const currentRoot = () =>
    peaks.reduceRight((right, left) => (right ? hashNode(left, right) : left), null) ?? sha256();
  for (let index = 0, bundle, at = 0; index < size; index += 1) {
    if (index % 256 === 0) {
      bundle = readTile(folder, 'entries', index / 256, Math.min(256, size - index));
      at = 0;
    }
    const place = `${bundle.place}, entry ${index}`;
    const start = at + 2;
    const end = start <= bundle.bytes.length ? start + bundle.bytes.readUInt16BE(at) : Infinity;
    ensure(end <= bundle.bytes.length, place, 'the file is cut off');
    const entry = bundle.bytes.subarray(start, end);
    yield { index, entry, place };
    at = end;
    const hash = hashLeaf(entry);
    add(0, hash);
    let subtree = hash;
    for (let rest = index; rest % 2 === 1; rest = (rest - 1) / 2) subtree = hashNode(peaks.pop(), subtree);
    peaks.push(subtree);
    if (older?.size === index + 1) {
      ensure(
        currentRoot().equals(older.root),
        `the first ${older.size} entries`,
        'they do not have the root of the earlier checkpoint',
      );
    }
  }
  for (let level = 0; level < levels.length; level += 1) compareTile(level);
  ensure(currentRoot().equals(root), `${path.basename(folder)}/checkpoint`, 'its root is not that of the entries');
}

async function checkWhole(folder, manifest, checkpoints, older, counts) {
  const events = readEvents(folder, counts);
  let next = (await events.next()).value;
  const heads = new Map();
  for (const [at, checkpoint] of checkpoints.entries()) {
    const tree = path.join(folder, 'trees', String(checkpoint.tree));
    const kept = readKept(folder, checkpoints[at + 1]) ?? Infinity;
    for (const { index, entry, place } of readTree(tree, checkpoint, older?.tree === checkpoint.tree ? older : null)) {
      counts.entries += 1;
      const { event_sha256: sha, number, previous, workspace_id: workspace } = parseJson(entry, place);
      if (sha === undefined) {
        ensure(index === 0 && checkpoint.tree > 1, place, 'it is not the entry of an event');
        continue;
      }
      if (index < kept) {
        const head = heads.get(workspace) ?? { number: 0, hash: null };
        ensure(
          number === head.number + 1,
          place,
          `its number in ${workspace} is ${number} instead of ${head.number + 1}`,
        );
        ensure(previous === head.hash, place, 'it does not name the previous entry of its workspace');
        heads.set(workspace, { number, hash: hex(sha256(entry)) });
      }
      if (next?.tree === checkpoint.tree && next.index === index) {
        ensure(next.entry.equals(entry), next.place, 'the event is not the one that was sealed at its place');
        next = (await events.next()).value;
      } else {
        // Only a range of time leaves out events, before its first and after its last one.
        const isBefore = counts.events === 0 || (counts.events === 1 && next !== undefined);
        const isOutside = (isBefore && manifest.from !== null) || (next === undefined && manifest.to !== null);
        const before = next === undefined ? 'the end of events.ndjson' : next.place;
        const problem = `the event of entry ${index} of tree ${checkpoint.tree} is missing`;
        ensure(isOutside || index >= kept, `before ${before}`, problem);
      }
    }
  }
  ensure(next === undefined, next?.place, 'the event is not in the tree, or not in its order');
}

/** How many entries of the tree before this one the log still had when this one began. */
function readKept(folder, checkpoint) {
  if (checkpoint === undefined) return undefined;
  const root = path.join(folder, 'trees', String(checkpoint.tree));
  const { bytes, place } = readTile(root, 'entries', 0, Math.min(256, checkpoint.size));
  return parseJson(bytes.subarray(2, 2 + bytes.readUInt16BE(0)), place).kept;
}

// One workspace: each entry has a proof of its own.

async function checkWorkspace(folder, { workspace_id: workspace }, checkpoints, counts) {
  let head;
  for await (const { event, entry, tree, index, number, previous, proof, place } of readEvents(folder, counts)) {
    ensure(event.workspace_id === workspace, place, `it belongs to ${event.workspace_id}`);
    ensure(head === undefined || number === head.number + 1, place, `number ${number} follows ${head?.number}`);
    ensure(head === undefined || previous === head.hash, place, 'it does not name the previous entry of the workspace');
    head = { number, hash: hex(sha256(entry)) };
    checkIncluded(entry, { index, proof, checkpoint: checkpoints.find((each) => each.tree === tree) }, place);
    counts.entries += 1;
  }
}

function checkIncluded(entry, { index, proof, checkpoint }, place) {
  const isPlace = Array.isArray(proof) && proof.every((each) => typeof each === 'string') && index < checkpoint?.size;
  ensure(isPlace, place, 'its place is not in a checkpoint');
  const siblings = proof.map((each) => Buffer.from(each, 'base64'));
  const root = rootOfProof(hashLeaf(entry), index, checkpoint.size, siblings);
  ensure(root?.equals(checkpoint.root), place, 'it was changed, or its proof does not give the root of the checkpoint');
}

// Calls: an event of this type has the root over the records of its workspace, in the order of their IDs.

const sealType = 'request_log.calls_sealed';

/** Checks that the records of calls.ndjson are those that the events seal. Returns lines of text. */
async function checkCalls(folder, seals, manifest) {
  const file = path.join(folder, 'calls.ndjson');
  ensure(existsSync(file), 'calls.ndjson', 'the file is missing');
  const counts = { records: 0, withheld: 0, seals: 0 };
  let [line, open] = [0, undefined];
  const close = (group) => {
    if (group === undefined) return;
    const { id, sealed, peaks, leaves, first } = group;
    const place = `calls.ndjson lines ${first} to ${line}, seal ${id}`;
    ensure(leaves === sealed.records, place, `it has ${leaves} records or hashes instead of ${sealed.records}`);
    const root = peaks.reduceRight((right, left) => (right ? hashNode(left, right) : left), null);
    ensure(
      root !== null && hex(root) === sealed.root,
      place,
      'a record was changed: they do not have the root of the seal',
    );
    counts.seals += 1;
  };
  for await (const text of createInterface({ input: createReadStream(file), crlfDelay: Infinity })) {
    const { seal: id, record, leaf_sha256: hash } = parseJson(text, `calls.ndjson line ${line + 1}`);
    if (open?.id !== id) {
      close(open);
      const sealed = seals.get(id);
      ensure(
        sealed !== undefined,
        `calls.ndjson line ${line + 1}`,
        `no event before it seals calls and has the ID ${id}`,
      );
      seals.delete(id);
      open = { id, sealed, peaks: [], leaves: 0, first: line + 1 };
    }
    line += 1;
    ensure(record || /^[0-9a-f]{64}$/.test(hash), `calls.ndjson line ${line}`, 'it has neither a record nor a hash');
    let subtree = record === undefined ? Buffer.from(hash, 'hex') : hashLeaf(Buffer.from(canonical(record)));
    for (let rest = open.leaves; rest % 2 === 1; rest = (rest - 1) / 2) subtree = hashNode(open.peaks.pop(), subtree);
    open.peaks.push(subtree);
    open.leaves += 1;
    if (record !== undefined) counts.records += 1;
    else counts.withheld += 1;
  }
  close(open);
  for (const { records } of seals.values()) counts.withheld += records;
  ensure(
    counts.records === manifest.calls,
    'calls.ndjson',
    `it has ${counts.records} records, manifest.json says ${manifest.calls}`,
  );
  if (counts.records + counts.withheld === 0) return [];
  return [
    `OK: ${counts.records} calls of ${counts.seals} seals.`,
    ...(counts.withheld > 0
      ? [`${counts.withheld} more sealed calls are not in the export. Compare with the retention of the workspace.`]
      : []),
  ];
}

/** Checks the record of a call in a proof. Returns lines of text. */
function checkCall(item, place) {
  const { record, index, proof } = item.call;
  const { root, records } = item.data;
  const isSeal = item.event.type === sealType && item.data_salt !== null;
  ensure(isSeal, place, 'it does not prove calls');
  const siblings = proof.map((each) => Buffer.from(each, 'base64'));
  const found = rootOfProof(hashLeaf(Buffer.from(canonical(record))), index, records, siblings);
  const isRight = found !== null && hex(found) === root && record.workspace_id === item.event.workspace_id;
  ensure(isRight, `call ${record.id}`, 'it was changed, or its proof does not give the root of the seal');
  return [`OK: call ${record.id} is record ${index + 1} of ${records} of the seal.`, JSON.stringify(record)];
}

async function checkFolder(folder, keys, earlier) {
  const read = (name) => {
    ensure(existsSync(path.join(folder, name)), name, 'the file is missing');
    return readFileSync(path.join(folder, name), 'utf8');
  };
  const manifest = parseJson(read('manifest.json'), 'manifest.json');
  const given = keys.length > 0 ? keys : read('key.txt').trim().split('\n').map(parseKey);
  const checkpoints = manifest.trees.map(({ tree }) => {
    const place = `trees/${tree}/checkpoint`;
    const checkpoint = openCheckpoint(read(place), given, place);
    ensure(checkpoint.tree === tree, place, `it is of tree ${checkpoint.tree}`);
    return checkpoint;
  });
  const older = earlier && openCheckpoint(readFileSync(earlier, 'utf8'), given, earlier);
  if (older) {
    ensure(
      manifest.workspace_id === null,
      '--checkpoint',
      'only an export of the whole log shows that it continues a checkpoint',
    );
    const newer = checkpoints.find(({ tree }) => tree === older.tree);
    ensure(
      newer?.size >= older.size,
      `tree ${older.tree}`,
      `it has ${newer?.size ?? 0} entries, the earlier checkpoint ${older.size}`,
    );
  }
  const counts = { events: 0, entries: 0, partial: 0, seals: new Map() };
  if (manifest.workspace_id === null) await checkWhole(folder, manifest, checkpoints, older, counts);
  else await checkWorkspace(folder, manifest, checkpoints, counts);
  ensure(
    counts.events === manifest.events,
    'events.ndjson',
    `it has ${counts.events} events, manifest.json says ${manifest.events}`,
  );
  const calls = await checkCalls(folder, counts.seals, manifest);
  const trees = checkpoints.map(({ tree, size }) => `tree ${tree} with ${size} entries`).join(', ');
  return [
    `OK: ${counts.events} events, ${counts.entries} entries (${trees}).`,
    ...calls,
    ...(counts.partial > 0
      ? [
          `Parts of ${counts.partial} events were withheld or erased: what is shown of these is not proved, only their digest.`,
        ]
      : []),
    ...(keys.length > 0
      ? []
      : ['The key is that of the export. Compare key.txt with the one that you received in another way.']),
  ];
}

function checkProof(file, keys) {
  const text = readFileSync(file, 'utf8');
  const end = text.indexOf('\n\n');
  const [header, extra = '', index = '', ...proof] = text.slice(0, Math.max(end, 0)).split('\n');
  const isProof = header === 'c2sp.org/tlog-proof@v1' && extra.startsWith('extra ') && /^index \d+$/.test(index);
  ensure(isProof, file, 'this is not a proof of an event');
  ensure(keys.length > 0, '--key', 'a proof needs the key of the log');
  const item = parseJson(Buffer.from(extra.slice(6), 'base64'), `${file}, extra`);
  const place = `event ${item.event?.event_id}`;
  const { entry, isWhole } = makeEntry(item, place);
  const checkpoint = openCheckpoint(text.slice(end + 2), keys, `${file}, checkpoint`);
  checkIncluded(entry, { index: Number(index.slice(6)), proof, checkpoint }, place);
  return [
    `OK: ${place} is entry ${index.slice(6)} of tree ${checkpoint.tree}.`,
    ...(isWhole ? [] : ['A part was withheld or erased: what is shown of it is not proved, only its digest.']),
    JSON.stringify(item.event),
    ...(item.call === undefined ? [] : checkCall(item, place)),
  ];
}

/** Checks an export or a proof. Returns lines of text; throws Bad at the first wrong place. */
async function main(args) {
  const options = { '--key': [], '--checkpoint': [] };
  const rest = [];
  for (let at = 0; at < args.length; at += 1) {
    if (args[at] in options) options[args[at]].push(args[(at += 1)] ?? '');
    else rest.push(args[at]);
  }
  ensure(rest.length === 1, 'usage', 'node audit-verify.mjs FOLDER|PROOF [--key KEY] [--checkpoint FILE]');
  const keys = options['--key'].map(parseKey);
  const target = rest[0];
  ensure(existsSync(target), target, 'it does not exist');
  return statSync(target).isDirectory()
    ? await checkFolder(target, keys, options['--checkpoint'][0])
    : checkProof(target, keys);
}

try {
  for (const line of await main(process.argv.slice(2))) console.log(line);
} catch (error) {
  console.error(error instanceof Bad ? `NOT OK: ${error.message}` : `NOT OK: ${error.stack}`);
  process.exitCode = 1;
}
