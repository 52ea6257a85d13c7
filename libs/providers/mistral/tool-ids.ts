import { createHash } from 'node:crypto';

const own = /^[A-Za-z0-9]{9}$/;
const member = /("(?:id|tool_call_id)"\s*:\s*)"([^"\\]*)"/g;

/**
 * Mistral takes ids of tool calls only as it makes them: nine letters and digits. Those of another provider, of a
 * conversation that began there, become the beginning of their digest: the same for a call and its result.
 */
export function shortToolIds(messages: string): string {
  return messages.replaceAll(member, (whole, name: string, id: string) =>
    own.test(id) ? whole : `${name}"${shorten(id)}"`,
  );
}

const shorten = (id: string): string => createHash('sha256').update(id).digest('hex').slice(0, 9);
