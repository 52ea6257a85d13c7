const lists: ReadonlySet<string> = new Set([
  'input_guardrails',
  'output_guardrails',
  'before_request_hooks',
  'after_request_hooks',
]);

/**
 * The slugs and IDs of stored guardrails that a document names, such as a config or the defaults of a key. Its depth
 * must be bounded.
 */
export function guardrailNamesIn(document: unknown): Set<string> {
  const names = new Set<string>();
  const visit = (node: unknown): void => {
    if (typeof node !== 'object' || node === null) return;
    for (const [member, value] of Object.entries(node)) {
      if (!lists.has(member) || !Array.isArray(value)) visit(value);
      else for (const entry of value) addName(entry, names);
    }
  };
  visit(document);
  return names;
}

function addName(entry: unknown, names: Set<string>): void {
  if (typeof entry === 'string') names.add(entry);
  if (typeof entry !== 'object' || entry === null || !('id' in entry) || typeof entry.id !== 'string') return;
  // An entry with a check is not a reference but a complete guardrail with that ID.
  if (Object.keys(entry).every((key) => key === 'id' || key === 'type')) names.add(entry.id);
}
