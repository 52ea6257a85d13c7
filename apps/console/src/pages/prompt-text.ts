/** A message that the page can edit: a role and a text. */
export type Message = { role: string; content: string };

/**
 * The template of a prompt as messages, if it is a list of messages with text. Null for other templates, such as completions
 * or messages with images, which are edited in their stored form.
 */
export function toMessages(template: string): Message[] | null {
  try {
    const value = JSON.parse(template) as unknown;
    if (!Array.isArray(value) || value.length === 0) return null;
    const isPlain = value.every(
      (each: unknown) =>
        typeof each === 'object' &&
        each !== null &&
        Object.keys(each).length === 2 &&
        typeof (each as Message).role === 'string' &&
        typeof (each as Message).content === 'string',
    );
    return isPlain ? (value as Message[]) : null;
  } catch {
    return null;
  }
}

/** A template in a form that is easy to compare: one message after the other, each below its role. */
export function readable(template: string): string {
  const messages = toMessages(template);
  return messages === null ? template : messages.map(({ role, content }) => `[${role}]\n${content}\n`).join('\n');
}

/**
 * The names of variables in a template, in order: those of `{{name}}` and sections, and `a` for `{{a.b}}`. Partials are not
 * included.
 */
export function variablesOf(template: string): string[] {
  const found = [...template.matchAll(/\{\{\{?[#^&]?\s*([\w-]+)(?:\.[\w-]+)*\s*\}?\}\}/g)].map(([, name = '']) => name);
  return [...new Set(found)];
}
