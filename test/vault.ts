import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';

/** How the next requests are answered. */
type Mood = 'well' | 'sealed' | 'hangs' | 'redirects' | 'huge';

export type TestVault = {
  url: string;
  /** One that never expires. */
  rootToken: string;
  appRole: { roleId: string; secretId: string };
  /** A path below the mount `secret`; a new version each time. */
  put: (path: string, data: object) => void;
  /** Deletes the current version, as `vault kv delete` does. */
  remove: (path: string) => void;
  mood: (next: Mood) => void;
  /** Ends all tokens that logins have given, as the end of their leases does. */
  expireTokens: () => void;
  /** The service account that may sign in by Kubernetes. */
  allowJwt: (jwt: string) => void;
  /** Method, path and namespace of each request, oldest first. */
  requests: string[];
  stop: () => Promise<void>;
};

/**
 * Answers like the HTTP API of HashiCorp Vault: a KV secrets engine of version 2 at `secret/`, and logins by AppRole and
 * Kubernetes, with the statuses and bodies that its documentation has for what is missing, deleted and denied.
 */
export async function startVault(): Promise<TestVault> {
  const rootToken = `hvs.${randomBytes(24).toString('base64url')}`;
  const appRole = { roleId: randomBytes(8).toString('hex'), secretId: randomBytes(16).toString('hex') };
  const secrets = new Map<string, { version: number; data: object | null }>();
  const tokens = new Set<string>();
  const jwts = new Set<string>();
  const requests: string[] = [];
  let mood: Mood = 'well';

  const answer = (response: ServerResponse, status: number, body: object): void => {
    response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(body));
  };
  const refuse = (response: ServerResponse, status: number, ...errors: string[]): void =>
    answer(response, status, { errors });

  const login = (response: ServerResponse): void => {
    const token = `hvs.${randomBytes(24).toString('base64url')}`;
    tokens.add(token);
    answer(response, 200, {
      request_id: randomBytes(8).toString('hex'),
      lease_id: '',
      renewable: false,
      lease_duration: 0,
      data: null,
      auth: {
        client_token: token,
        policies: ['gateway'],
        lease_duration: 3_600,
        renewable: true,
        token_type: 'service',
      },
    });
  };

  const read = (response: ServerResponse, name: string): void => {
    const secret = secrets.get(name);
    if (secret === undefined) return refuse(response, 404);
    const metadata = { created_time: '2026-01-01T00:00:00Z', version: secret.version, destroyed: false };
    const body = { request_id: 'r', lease_id: '', renewable: false, lease_duration: 0, warnings: null };
    if (secret.data === null) {
      const deleted = { ...metadata, deletion_time: '2026-01-02T00:00:00Z' };
      return answer(response, 404, { ...body, data: { data: null, metadata: deleted } });
    }
    answer(response, 200, { ...body, data: { data: secret.data, metadata: { ...metadata, deletion_time: '' } } });
  };

  const handle = async (request: IncomingMessage, response: ServerResponse): Promise<void> => {
    const { method = '', url = '', headers } = request;
    requests.push([method, url, headers['x-vault-namespace']].filter((part) => part !== undefined).join(' '));
    if (mood === 'hangs') return;
    if (mood === 'sealed') return refuse(response, 503, 'Vault is sealed');
    if (mood === 'redirects') return void response.writeHead(307, { location: `http://127.0.0.1:1${url}` }).end();
    if (mood === 'huge')
      return answer(response, 200, { data: { data: { key: 'x'.repeat(10_000_000) }, metadata: {} } });
    if (headers['x-vault-request'] !== 'true') return refuse(response, 412, 'missing X-Vault-Request');
    const body = await asText(request);
    if (method === 'POST' && url === '/v1/auth/approle/login') {
      const sent = JSON.parse(body) as { role_id?: string; secret_id?: string };
      const isKnown = sent.role_id === appRole.roleId && sent.secret_id === appRole.secretId;
      return isKnown ? login(response) : refuse(response, 400, 'invalid role or secret ID');
    }
    if (method === 'POST' && url === '/v1/auth/kubernetes/login') {
      const sent = JSON.parse(body) as { role?: string; jwt?: string };
      const isKnown = sent.role === 'gateway' && jwts.has(sent.jwt ?? '');
      return isKnown ? login(response) : refuse(response, 403, 'permission denied');
    }
    const token = String(headers['x-vault-token'] ?? '');
    if (token !== rootToken && !tokens.has(token)) return refuse(response, 403, 'permission denied');
    const name = /^\/v1\/secret\/data\/(.+)$/.exec(url)?.[1];
    if (method !== 'GET' || name === undefined) return refuse(response, 404);
    read(response, decodeURIComponent(name));
  };

  const server = createServer((request, response) => void handle(request, response));
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const address = server.address();
  if (address === null || typeof address === 'string') throw new Error('the vault has no port');
  return {
    url: `http://127.0.0.1:${address.port}`,
    rootToken,
    appRole,
    put: (path, data) => void secrets.set(path, { version: (secrets.get(path)?.version ?? 0) + 1, data }),
    remove: (path) => void secrets.set(path, { version: secrets.get(path)?.version ?? 1, data: null }),
    mood: (next) => {
      mood = next;
    },
    expireTokens: () => tokens.clear(),
    allowJwt: (jwt) => void jwts.add(jwt),
    requests,
    async stop() {
      server.closeAllConnections();
      server.close();
      await once(server, 'close');
    },
  };
}

async function asText(request: IncomingMessage): Promise<string> {
  const chunks: Buffer[] = [];
  for await (const chunk of request) chunks.push(chunk as Buffer);
  return Buffer.concat(chunks).toString();
}
