import { createHash } from 'node:crypto';
import { LRUCache } from 'lru-cache';
import { GatewayError } from '#libs/kernel/errors.ts';
import { asNumber, asText, parseJson, toRecord } from '../turns/json-value.ts';
import type { AuthorizeTools, Upstream } from '../provider.ts';

type Client = { tenantId: string; clientId: string; clientSecret: string; scope: string };
type Token = { text: string; expiresAt: number };

const defaultScope = 'https://cognitiveservices.azure.com/.default';
/** How many clients' tokens are cached. With more clients, some tokens are fetched again. */
const clientsMax = 1_000;
/** A token is not used in its last minutes, because a call can wait that long to be sent. */
const marginMs = 300_000;

/** The application that signs in with a client secret, if there is one. Throws invalid_request if a part is missing. */
export function readEntraClient({ settings, secrets }: Pick<Upstream, 'settings' | 'secrets'>): Client | null {
  const { azure_entra_tenant_id: tenantId, azure_entra_client_id: clientId, azure_auth_mode: mode } = settings;
  if (mode !== undefined && mode !== 'default' && mode !== 'entra') {
    throw unusable(
      'azure_auth_mode',
      `'${mode}' is not supported: use an API key, azure_ad_token or an Entra client secret`,
    );
  }
  const clientSecret = secrets['azure_entra_client_secret']?.reveal();
  if (tenantId === undefined && clientId === undefined && clientSecret === undefined && mode !== 'entra') return null;
  if (!tenantId || !clientId || !clientSecret) {
    throw unusable(
      'azure_entra_tenant_id',
      'azure_entra_tenant_id, azure_entra_client_id and azure_entra_client_secret must be set together',
    );
  }
  if (!/^[A-Za-z0-9][A-Za-z0-9.-]{0,99}$/.test(tenantId)) {
    throw unusable('azure_entra_tenant_id', 'expected the ID or the domain of a tenant');
  }
  return { tenantId, clientId, clientSecret, scope: settings['azure_entra_scope'] ?? defaultScope };
}

export type EntraTokens = (client: Client, tools: AuthorizeTools) => Promise<string>;

/** Fetches tokens by the OAuth client credentials grant and caches each until shortly before it expires. */
export function createEntraTokens(): EntraTokens {
  const tokens = new LRUCache<string, Token>({ max: clientsMax });
  const running = new Map<string, Promise<Token>>();

  return async (client, tools) => {
    const key = createHash('sha256').update(JSON.stringify(client)).digest('base64');
    const kept = tokens.get(key);
    if (kept && kept.expiresAt - marginMs > tools.now) return shown(kept, tools);
    // Calls that wait share one fetch. If it fails (its caller may have disconnected), each of them tries again.
    const current = running.get(key);
    const shared = current && (await current.catch(() => null));
    if (shared) return shown(shared, tools);
    const fetching = fetchToken(client, tools);
    running.set(key, fetching);
    try {
      const token = await fetching;
      tokens.set(key, token);
      return shown(token, tools);
    } finally {
      if (running.get(key) === fetching) running.delete(key);
    }
  };
}

function shown({ text }: Token, { keepSecret }: AuthorizeTools): string {
  keepSecret(text);
  return text;
}

async function fetchToken({ tenantId, clientId, clientSecret, scope }: Client, tools: AuthorizeTools): Promise<Token> {
  const form = new URLSearchParams({
    grant_type: 'client_credentials',
    client_id: clientId,
    client_secret: clientSecret,
    scope,
  });
  const { status, body } = await tools.fetch({
    method: 'POST',
    origin: 'https://login.microsoftonline.com',
    path: `/${tenantId}/oauth2/v2.0/token`,
    headers: ['content-type', 'application/x-www-form-urlencoded', 'accept', 'application/json'],
    body: Buffer.from(form.toString()),
  });
  const answer = toRecord(parseJson(body.toString()));
  const text = asText(answer['access_token']);
  if (status === 200 && text) {
    return { text, expiresAt: tools.now + (asNumber(answer['expires_in']) ?? 600) * 1_000 };
  }
  // The number identifies the problem (AADSTS7000215: invalid secret). The text around it can repeat parts of the request.
  const number = /AADSTS\d{1,12}/.exec(asText(answer['error_description']) ?? '')?.[0] ?? `status ${status}`;
  if (status >= 400 && status < 500 && status !== 408 && status !== 429) {
    throw unusable('azure_entra_client_secret', `Microsoft Entra rejected the client (${number})`);
  }
  throw new GatewayError('provider_failed', 'upstream_error', `Microsoft Entra did not issue a token (${number}).`);
}

const unusable = (param: string, why: string): GatewayError =>
  new GatewayError('invalid_request', 'invalid_credential', `The credential is invalid: ${why}.`, { param });
