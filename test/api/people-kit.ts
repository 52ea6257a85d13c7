import { randomBytes } from 'node:crypto';

export type Body = Record<string, never> & {
  data: Record<string, never>[];
  records: object[];
  error: { code: string; param: string };
};
export type Answer = { status: number; body: Body };
export type Ask = (method: string, path: string, body?: object, key?: string | null) => Promise<Answer>;

type Person = { email?: string; role?: string; workspaces?: { id: string; role: string }[]; scopes?: string[] };

/** Sends requests as the organisation's key, or as another (null: as nobody). */
export function asker({ baseUrl, adminKey }: { baseUrl: string; adminKey: string }): Ask {
  return async (method, path, body, key = adminKey) => {
    const response = await fetch(`${baseUrl}${path}`, {
      method,
      headers: {
        ...(key === null ? {} : { authorization: `Bearer ${key}` }),
        ...(body === undefined ? {} : { 'content-type': 'application/json' }),
      },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    });
    return { status: response.status, body: (await response.json()) as Body };
  };
}

/** The token of the link that an invite was answered with. */
export const tokenOf = (link: string | undefined): string => /#token=(.+)$/.exec(link ?? '')?.[1] ?? '';

/** Invites a person, who accepts; with `scopes`, with a key of the first workspace. */
export async function join(
  ask: Ask,
  { email, role, workspaces, scopes }: Person = {},
): Promise<{ id: string; key: string }> {
  const invited = await ask('POST', '/admin/users/invites', {
    email: email ?? `${randomBytes(6).toString('hex')}@example.org`,
    role: role ?? 'member',
    workspaces: workspaces ?? [],
    ...(scopes ? { workspace_api_key_details: { scopes } } : {}),
  });
  if (invited.status !== 200) throw new Error(JSON.stringify(invited));
  const accepted = await ask(
    'POST',
    '/admin/users/invites/accept',
    { token: tokenOf(invited.body['invite_link']) },
    null,
  );
  if (accepted.status !== 200) throw new Error(JSON.stringify(accepted));
  const [key] = accepted.body['workspace_api_keys'] as never as { key: string }[];
  return { id: accepted.body['id'] ?? '', key: key?.key ?? '' };
}
