import type { ForwardRequest } from '#libs/calls/call.ts';
import { editedBody } from '#libs/calls/upstream/edited-body.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { isForeignReasoning } from '#libs/providers/responses/reasoning.ts';

/** Members whose text is the ID of an object at the provider, whatever it looks like. */
const namingMembers: ReadonlySet<string> = new Set([
  'assistant_id',
  'container',
  'container_id',
  'conversation',
  'conversation_id',
  'file_id',
  'file_ids',
  'input_file_id',
  'previous_response_id',
  'response_id',
  'thread_id',
  'training_file',
  'validation_file',
  'vector_store_id',
  'vector_store_ids',
]);

/** How OpenAI's IDs begin. Any other member that ends in `_id` names an object if its text looks like one of these. */
const idShape = /^(?:asst|batch|ci|cntr|conv|file|fs|ftjob|ig|mcpl|mcpr|msg|resp|rs|run|skill|thread|vs|vsfb|ws)[_-]/;

/** Members with names and texts of the caller's own. */
const ownMembers: ReadonlySet<string> = new Set([
  'arguments',
  'attributes',
  'headers',
  'metadata',
  'parameters',
  'schema',
]);

/** Items of the Responses API that carry their whole content, so that the provider looks nothing up by their ID. */
const wholeItems: ReadonlySet<string> = new Set([
  'compaction',
  'custom_tool_call',
  'custom_tool_call_output',
  'function_call',
  'function_call_output',
  'message',
]);

/** A conversation with more references than this is refused. */
const namedMax = 1_000;

/**
 * Returns the IDs of stored objects that the body of a call names. Throws invalid_request for more than 1,000 of them.
 * The members are those that the provider gets, after the edits of a config.
 */
export function namedObjects(request: Pick<ForwardRequest, 'operation' | 'body' | 'parsed' | 'edits' | 'relayed'>) {
  const { operation, body, parsed, edits, relayed } = request;
  const named = new Set<string>();
  if (body.length === 0) return named;
  const applied = relayed === undefined ? edits : undefined;
  const hasItems = operation === 'responses' || operation === 'conversations';
  // An ordinary chat names no objects, and this avoids parsing its body to find that out.
  if (!hasItems && relayed === undefined && applied === undefined && !mayName(body)) return named;
  const members = editedBody(body, applied, relayed === undefined ? parsed : undefined);
  collect(members, named);
  if (hasItems) {
    for (const list of [members['input'], members['items']]) collectItems(list, named, relayed === undefined);
  }
  if (named.size <= namedMax) return named;
  const message = `A call can refer to at most ${namedMax} objects stored at the provider, but this one refers to ${named.size}.`;
  throw new GatewayError('invalid_request', 'array_above_max_length', message);
}

/** JSON allows escapes in the names of members. */
const mayName = (body: Buffer): boolean =>
  body.includes('_id') || body.includes('\\u') || body.includes('"conversation') || body.includes('"container');

function collect(value: unknown, named: Set<string>): void {
  if (typeof value !== 'object' || value === null) return;
  if (Array.isArray(value)) {
    for (const entry of value) collect(entry, named);
    return;
  }
  for (const [name, member] of Object.entries(value)) {
    if (ownMembers.has(name)) continue;
    if (namingMembers.has(name)) addAll(named, idOf(member), () => true);
    else if (/_ids?$/.test(name)) addAll(named, member, (text) => idShape.test(text));
    collect(member, named);
  }
}

/** A conversation or container is named by its ID or as an object with one. */
const idOf = (member: unknown): unknown =>
  typeof member === 'object' && member !== null && 'id' in member ? member.id : member;

function addAll(named: Set<string>, member: unknown, isId: (text: string) => boolean): void {
  for (const entry of Array.isArray(member) ? (member as unknown[]) : [member]) {
    if (typeof entry === 'string' && isId(entry)) named.add(entry);
  }
}

/**
 * Items that refer to earlier ones: references, and calls whose results the provider has stored. `leavesForeign`: reasoning that
 * another provider has signed is not sent.
 */
function collectItems(list: unknown, named: Set<string>, leavesForeign: boolean): void {
  if (!Array.isArray(list)) return;
  for (const item of list as unknown[]) {
    if (typeof item !== 'object' || item === null) continue;
    const { id, type, role } = item as Record<string, unknown>;
    if (leavesForeign && isForeignReasoning(item as Record<string, unknown>)) continue;
    const isWhole = typeof type === 'string' ? wholeItems.has(type) : role !== undefined;
    if (typeof id === 'string' && !isWhole) named.add(id);
  }
}
