import { z } from 'zod';
import { credentialHeaders } from '#libs/providers/setting-fields.ts';
import { addBreach } from '../scalars.ts';

// Headers of the connection between client and gateway, and credentials: the gateway's own, or a provider's, which the
// adapter sets.
const ours: ReadonlySet<string> = new Set<string>([
  'accept',
  'accept-encoding',
  'api-key',
  'authorization',
  'connection',
  'cookie',
  'expect',
  'host',
  'http2-settings',
  'keep-alive',
  'set-cookie',
  'te',
  'trailer',
  'transfer-encoding',
  'upgrade',
  'user-agent',
  'x-api-key',
  ...credentialHeaders,
]);
const oursBegin = ['content-', 'proxy-', 'x-gateway-', 'x-portkey-', ...ours].filter((name) => name.endsWith('-'));

/** The name of a client's header that can be forwarded to the provider; in lower case. */
export const ForwardHeader = z
  .string()
  .min(1)
  .max(100)
  .regex(/^[a-zA-Z0-9_-]+$/)
  .transform((name) => name.toLowerCase())
  .check((context) => {
    if (!ours.has(context.value) && !oursBegin.some((beginning) => context.value.startsWith(beginning))) return;
    addBreach(context, {
      path: [],
      code: 'invalid_value',
      text: (name) =>
        `Invalid ${name()}: the gateway never forwards the header '${context.value}'. To send a credential to a ` +
        'provider, use api_key or a virtual key.',
    });
  });
