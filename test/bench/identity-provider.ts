import { createServer } from 'node:http';
import { once } from 'node:events';
import type { AddressInfo } from 'node:net';
import { exportJWK, generateKeyPair, SignJWT } from 'jose';

/** An identity provider on this machine: the variables by which an API trusts it, and tokens. */
export type IdentityProvider = {
  environment: Record<string, string>;
  host: string;
  /** A token of a user, valid for an hour. */
  tokenOf(userId: string, workspaceId: string): Promise<string>;
};

const issuer = 'https://login.example.com/';
const audience = 'sluice';

export async function startIdentityProvider(cleanup: {
  add(undo: () => Promise<unknown>): void;
}): Promise<IdentityProvider> {
  const { publicKey, privateKey } = await generateKeyPair('ES256');
  const keys = JSON.stringify({ keys: [{ ...(await exportJWK(publicKey)), kid: 'bench' }] });
  const server = createServer((_request, response) => {
    response.setHeader('content-type', 'application/json');
    response.end(keys);
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  cleanup.add(async () => {
    server.closeAllConnections();
    await new Promise((resolve) => server.close(resolve));
  });
  const host = `127.0.0.1:${(server.address() as AddressInfo).port}`;
  return {
    environment: { SLUICE_JWKS_URL: `http://${host}/keys`, SLUICE_JWT_ISSUER: issuer, SLUICE_JWT_AUDIENCE: audience },
    host,
    tokenOf: (userId, workspaceId) =>
      new SignJWT({ workspace: workspaceId })
        .setProtectedHeader({ alg: 'ES256', kid: 'bench' })
        .setIssuer(issuer)
        .setAudience(audience)
        .setSubject(userId)
        .setIssuedAt()
        .setExpirationTime('1h')
        .sign(privateKey),
  };
}
