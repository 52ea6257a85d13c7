import { GatewayError } from '#libs/kernel/errors.ts';

/** AWS's names: a part of a host name, and nothing that could make another one of it. */
const form = /^[a-z]{2,4}(-[a-z]{2,12}){1,3}-\d{1,2}$/;

/** Throws invalid_request for a text that is no region's name, since it becomes part of the host that is called. */
export function assertRegion(region: string): void {
  if (form.test(region)) return;
  throw new GatewayError(
    'invalid_request',
    'invalid_value',
    "Invalid 'aws_region': expected a region name like us-east-1.",
    { param: 'aws_region' },
  );
}

export const awsDomain = (region: string): string => (region.startsWith('cn-') ? 'amazonaws.com.cn' : 'amazonaws.com');
