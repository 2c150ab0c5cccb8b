"""Caffe's messages as protobuf classes. Written by tools/gen_proto.py from proto/caffe.proto; do not edit."""
# ruff: noqa

import base64
import zlib

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper

_SERIALIZED = """
c-qB0OK=;>b&DSfGyrl4egsk99j#WM^=c)pv@3DFUV{WAp$Y_G0HnN5Ri=i(ken5Of$<S3$4TtOv7L{dIKNYpYn($4sfsU2rR-
D6`KQX498#$q<J{s@<(&6kchB_9fTXzVR1PW;-TnIW-
s{)zJM3J~?%Qp1ch`DrFm%SwTlDuW`a73$JN5G{wcd4hn)~L!%FVM_$L{4Lmt)ss>rpMD|8s<Q*9mNn#rhNMj$BWyMQ-
O7S+c!v_WM?Ml#j~B1vay9*?arrd`vcJEOB6W#{2oW*AnlTV>6$Cm7=&3wb;A6`5Cw63QLS|SNU0hO5a_&<!<_xx8pM`-
Ek&6UCW^Pk^mhcXr%+EP00@Z9X9WtXxnO!oguEY15G13cz7ims(&@Y5=C=7>A_aLV-qd_G4jlWhFn%2m{5?*h|}WnGuYWRcdRZP9y@c4?RFh=%nv}v&#
kaotKW7yR)-FsTubbl-I1mLQIut>*0^pC&7L*3hB$K{{-kZBa&NGiuKB_mA~o<J=ahqN->G1i2MXJ;`-
2IRDF(0$EJZ&JWPms{C2|+o+^#chTgHyres*9EJG5iDnVb&v8JlAZ_KfsdR2G9hHnA&rma&etGuboj{;uOYOYR0s^94DPlT%U8iF_R~2Aj`!XwX?@kpE
D6gC*Uyud>8o-yCt|%-z)#s5-
W<#apFj3z@TPJqL2Q9Gs<t?O7Z%`T^mb=4?#5R_@XX^CBvt$xvpcCi74<#UzjLRpJu=eFu<1O$l1~kKyvs(V7FR9U%36#sF_a%jf}@&?0kpUsZP^;cgY
}-
p0Pwezpk%f!SueL!&q8^4l3*i`>aABaPbT3*H<T&H7E2@qscn(`+@$8!hb>;CEIpH8#u5W_h~=ck0_wHvh=(c2)jbVe#>cf!Oa_vhDQYZ2d9f`?=Yj@J
&Y%-
yl|C<8nj%w|VI91f){DXPJHCJ~?1C?hxP6fE=3{4b0()i;Bcr^vyfDM=bl?9NK0d__yy2d%$3bqiYI|0z1C7Eyh=2_}a{)Le(f&^?NL%wj&yN51=8<X7
TUZRtp3U{3vXf8imItEvo-dn$0(z?sF9(K;iMw1jguFV?jlbBx7qdrk1E=18T7Wg7`0y%d;$R>O&i#&Xc0^Y<342&gc#~Zm^+aj|OmA2ssH{0Qrt)o0X
gh958UYcKZe4B!!%~XZCs~2uYj-eh!=i0ATbJr*L{!A0%HsO)X0-
b3oG0Ail|G<haq;8jS2OS@|q21<%8%Zw^NL&Nx3O_k4!U%SK}`w07;o{5<XAJj=QrB(gPCT71CLBf=+V_yr>7RfU)VY>VH>xofe<^)1+Rs$)I3fg9{jJ
|}l`nJo}*+fENe5n$38jq;1?!tjm^&3?z}86ykC@e=gKh{0~Nd6%5V0N2eglOR0f7la-Iyv61uwFSTm$+IH?{L=G`x~()k#lSRqLfuV}9qycGkKe>~mg
d{$vU~Mt*?o;M+Abe>j<z~=pw5<D%9*>ch(Rml&(ntE<KYB_=Hk%Wn{?qSeaRf#PTwHmaDjwFv~pJ=Fm+sfNdmWE@LH_-
xCjJJbgV8sp_fQ3B<@&m-hPmKl`V?PV~=gKD;CdRR<?GAWlWd}<Sr-wtDHIR;8j76=F&>1ySU2c+Fg5K><!J14R>Ocze1}aLjZ^2Ju~PAye229Df|wvY
0n(zuhQ9W9CtPW@rVG{((C1Fq48n8QESy;yQyJsB(C1;w0ivZt%namPNd{Ty_>(rk$@c!;UHWTUngu6wl1*+dQy!88wAME>P*^J{)U1T5GDMQkMcK3GU
+U30V+6o{)<a>K!!OQ*}HHIL@Q_v%p4eSlo2BNCqnd>L2v=Wx_I|NHjOQF0?YOZPj3)fUt`N~+yi3(8=@&;M<aZVKBa0uZ?HK(Vsc3qe^PvOA4KsyQ;`
Hu(nZER5s;f@v5oo`jDtTw8bJS+>_-m5X21&cXF!1ft)SGXZ3~%REIe)$idqzZG&Y+se_e~=IOr*sDy@PR$9=%BO)a7SAi~moUVb;=)h6K^5fU-owaj7
P>IjjKxA!WW-M2@ehrS?ze}w*tY}%d-hd^Hgxzc+D&an)R?@fA~e-o1b-+220Fzh@rB_MTdfcDWJ^OpeumstkU+_S_L{||g2Qu_CR$pgBgU-!recH-
Ly-FL?skDZ=SBtbHboq^D5@W8MqgR>G>_fg&EqG~2|Tu<F`b@JI`aB`i^+WmHS(vkY(nJMy#lr|V?9rBT><43yc9Xmq3TVZoxMGee7fG|4FK_8yQ*!5)
YJ$exOBfRB87I#Rx>dF)?If5>Xhv82#Mu_5Y7Qy9JJr_E?(f8P#*#>Sf+b;yfE<v1EAPQoD2Xz|+-
Ea@}0S>cAFsmxeaBtH*^g)2$2A5kv?1vyWsM~|sU@HItco>cC=Uku)Sesz4_+jNh|MAw?0!;GU=}zdS;P4+2{3SoU9OFYI8d3u2SqPC}!kOOayDZxQS~
?SX!Y%=*hEtLEdob@ZtuyKMUKq+cJp#L+g5i+RV(>tbz~xZ=&|)Rt@4>*+ZXFK9cqjC<mktNs*!ygLzq5N^-Pa(*7AP<M+j__r2n-
H6aPja(0=yUitkDo3D)#OEo{!GM5GtPF5I=<h(C*=jtL$|Y0xaVY|7PE3i>M6kp$4NYIwsi5Dy$ggUzfo9AP?aN!;>dZJDCCwqw0K+j~d;fWXR_sYE&9
kA6k1>52U(!#)A-AH))Ljkg!bexm@Njw9Mvq)yGr=2ekSAo*4fk#8h?O@4?(+Y0~fo#Fq%-
tPkQq75{LjhE{hXhW}jXPBpB`mTyNRd#~r%9Rcv=(2knC-
w)&Ljy>7*^I;g??>oh)iwZr5_=V6Zn%L_*1sI_FV)!qHPSG;^PgD+_AMeBSxbJl3IldAJacD~p@d+<bZs1)|>HgJ7i11Hoke~2(SZ45Iyzk1qUy6hTZk
_s7qar;}i1W*lFfsk)c>}cCfs`m;i-fqVS+9G8-
)31npgE9O{*_3GFbzJyw?fyE?D+NY3KeJ1x56&ygkwvd`5WOC9`OM_;*iR!JP+Rt6Q?1E_^@U5b}UKJUkzicgxwy%o4_=7SDyaYB4Mt9UT^pVrtO&H_C
C2B1kkUCceajW(4F8znn%Uo2qUee(hzpFW1CX=eJi}Hb?Eh-dek=EQ+zvo>Lzyk0Jv|C1N>$fpxpO81hAntypv-5Z-qCs0lhx@4df32^PMo3-
0=azOEs7S{`NG&iy?j#z{@Ic|L;se0e1UOgq9v3|GQI81ijwy&$1=6-*-
@p?5G$2ha6CK%@yQ0|K0x#TSNz(z2h9JFWcWlLT}S14qJB){ZAWQBru<P=*8fWe;d9?bw0oYdItzGw4I@Wt8%cvi-dHBIu3yaJ-
8xU>A)ZS0{Rq(zmJ6UyrLW#R3DzOyf+IPmlM<7{Xg(|u1=e$B!;T*2UBj`KZaQXFB_Ww{=53z?pTgWu73(cZsQm~sg_t8RQPAcu5EQYBWXANTa2AKO1;
-uf^HyLP{Qjv)3b*|XGmt0>(^OgDY{5x9HU1x%VR1j^nk*GU5gCA6ow6`iF+rwVYN#8f)}yvbYbEdb>g#(@jkG`U-&)ox5*BK1qBk4p+~1d-
M*){?|6D_Ds-
8uj!%od%jT_~jc&I7h<rn1vaW)X*B)=U12B$6nAj(;qd)_1Iv|%LHQfgVo{VS7f7#GOTjc#ddc4gtpjMlG`4G&7$X>$kkqV@LH_EbpMgZG)<V*mou0L0
hIV#EQqg+f<j=vE^W29!*Pxgd7oW~<G0Ukk@q%nGC4~UWi6SEknvHBh1>OOar)pM)3zBXGaZI>#=^_<QYIbVo?li;0{y5J&9qN~<|O%vT<y?gpO76tG$
lQU_rpc|yJ34cZO??zZ|iUkBxm@eBcdEQ01ZS`oEJh?e1J@SobeQ~!KwRmy2IQ@3xZVCG7Mi6I?4le06wh*?7f`s+cEJ`$6VY8$C$?mQotm~$_&K9THO
27%o1cv8G(SI+>a#L)akHuBXVXnfFKLy58&Y4t4!-{?Dzz_sT$>B@rj6N_p9hf&s(jE!kN-J*0MV1~q<QnaEfFm-5m-
}okpkKI@j2uJBFR;aF)|8)i5u%+Ih+M0zL{isdB|@eCkmaVRBg(dp3{mUfkFv#S%Krb4@HopdyL*Of+7OweYq8t6?qk=E+Lcth(g3wPH0k~2fg*G}-
@Ol%O{2%hIz$QF@hE;q?26(wY4QZe56s~J{grLAy>A)h0T>a@6;b2khb-
~KUq@Khuk0+bjJ*dhzGd)GdPK&y`tqIU&nl=GS=q!r|1pw{H;;0yxrzdfrtnc>yHF_?^>wxo>O+b5Xsc2I*_UE`oEE|8=z5{G@x*ABzfjVmIH+2ymb92
&VGCim9MF9XczVWJQv^KCL)*=%xDz@qMUY{({E;p+cq)75aL?|08pj1T*R}T0Whfo=s^+2Zu-p_!%{>;U=qZnN>&JR^2zP7I${l?LPK?3Q83w-
qBl!PaEvi3Y%hUZb!MhN|fd0)mTbk<cg9`yKgwR37?FQB(^9cHT;*eb0z;l8;${!D4wP)54M1Z_Y{EbQM4V}qA-
lIFTweb*?Kzc>8V54V6^i#ZIvmtdU_=>@^NBa=~$rAxI^pJNz^>L-DXgToi7l<&ieW4*KEkZ%!F<IO@jL8OC4oK<A=00FERv#F}qB!i_-Pcd>u-
+=s=(X8m=}}>;(sF5~Np8K!=DA7%Pl?^T3qqgbweB5<J#_3Yzm7S?ss09=;j^MXA?D?GYNPPzQ3*H*|J*88tH4CxiZd<b(t60^=mryf`uZ{6FKXDd#`{
iZEw)+se2@?LbFko2J?1e2F;9FN0TLks%!CLq8zMkbw46-r_go^SLl-
f0z#xI(;_tz0WOfbVDfEln4;TZE2U?M&&V~Z7q4^s)nnYuKqg1Zww;1zqilH>XDi5_4Fgpb0VY5}+cv5J#${RqyQ&IaeOS$WzB*hi^;765OtpU2`k0K~
lrnzfRB^yHbI(FK79X}C3UX_HrDtXEY>5m4^$nw3@`kzPGT)-DK?Kr-
)t!Vg!vExn{KkW$<Cjsa`h_Z~&4Ze(lEl_I|?Q1P^A6eY&4)#q?*~zi^jx{z#8W89f@7{;kJ56T&(Aq;`5fAacx)eP>4H~&NU)X5WnoR?ku39Zsnz;;%
Jd+7TcXIE#*J*~Pym-`<fvW_XDf3nV$q`%!I5WrQo|aor%2nA2EP5)A|L+LP_?)m9aC`wj?2c5nIqmNYnHLSAMFkJZyW<Y;0}LMi|MZ@J#Bx)-
qIsrGMwTJO7lx^M%4IV5Iy=*Io@3ZUCU3afX;jU9$g!9;7zwVTq>%f%$+CV2sl1mFc`w1@#j9o>T8b8Slg+%WXwd%@u5ZAp`cq#7rH6OZ<El(Q^}X$|j
4!NondMwn+K`EK9Q8t)z$<Tpf<FSQPPL@mErb#O5I9H+g;Q6(5bO|j0->;?*`fb1!g5obxyxZeh>v7QzC}+f-
%dukKPAhD^Ybig9ikvN_U%r`>ie=~_3wZU;}67~WpjPd$0<%e>N*40Ie0twz`dgUZeKbo*cQ5@r@C`L!{!3PA&>haC!zw>3PE{;Qc*j8d*U+7_+l2W#F
qw%{$-|x0)d{Q6Sg>lgFo5fpR=q#;`bo1^rfR>gP&~OS3xlNLk;ud<#Q2pgJu2Eg*4BQja-gikJ1nG5ReT&^qVX<B?h?!YK3dYORmz3KoK=xK!bH<9y3
p23%ek&W#8U)(}igkUjXmp&GHCX&mUygWZG#&g*s`TZ$*HKf|224nJ6&$NOQ(DJx@j5O;8B}Ni?f0jlvCM+nBu@@tZ=z_K!*{BO{jQCjLV<AIz`;;U{u
(c&Ww_J_G$WFp)3l7I=T|qGjvs?v6z6aaR8mz-
1@_<$aa{(KO`NS|nr~1joyU+F&i#+}cDpTHCR9cWH?zJQ^B2;#ie|2^f?{sj8^@HI{NGKyAO?s1>=20h0lyh0+lP#Au<YaOi<uVo3|^8U-
)Fp8B8BqY?@Y7s3a<acnTzYm$cz(0~j%etMZ~4+>;j0rL)q8HD&(6qyPBXnszMVdG}0P}So4&oV6(W`7yyV|YtTiqa8taZ&-
H<j<A>5yG=8d|bBZ=3F=!#NmGVd6i}HkZ*x#wU1SOfGserF7~BcY(ALR0L%&Y=%gz>LRnb@!m|#+?xDyH=!8Sz8okUGcu9oKa{}PC>iS-
25WQL`0t)jw!;T0>WcA+%=9m&IJdX)?r0k3aCMFX5RH54}!{h5Ot#_Ocy`8F|CRC@mt2*7et$#1d7Q%5@OwPw#Zf;w}M7lmm8sW-
_@pOH2G_cxIzlu>Sm|MH>#s~ySXM7xE-
u^Nln9$Y#X5<ofZ;vlAE1l)ovM)Ru;^zVPXrM@=j8$GwK>jpK#`V142cnK((UnSBPZ4~;k{eFPqFi0ZW;SY#Y6)zAO#9s^Ra>Qo^tECGb@GN7=r|XvP9
Fp^Cdf7?g8@8?zOWuDp#9#+2tJsw?%Twtu6)Kiub5||0;7K=#g?Z><EtzSW-kxqyJawQcRzJf82?tqX=4NBwWpe!wOZ?mQMm*2&4JY4RVL(`;hQH;2=B
+PJL7D#_NawMAUDfpUangU1os=I1La^_BN1N!X5|+P4S5oe3598@jP)oYLA#m>x!0%fY7;?dOLKJ~R=rUwmN#1ES{0s%1qUp;t~r<<rFf04ph?Kn7Ixt
ut&U!;q|Z88#AxUq_iT~Z91A~O7u!W{SYn}x-G&_+dpsm9;g`WGaSYJU4Lk`<PC+ZI#lbev^2KG!aLm08J!$L_TUU5D_gR+0$STLrT-
d!9ywtZOr>_Y<&s}F{d34sb#8AeK&EX#05?`6jRkqRt#5p@3;e8)FhPl^wMq|6}_rTs@t0JDjh1w2c$sE2gc6OXYs*Z7oqK!E)Fk8Q4`72|pEX{GlPqs
uSd*fuv6AYa%1Dt47OOFe!@^&frX_mr!sFu>)@TC+SdyCJ&%VhQjAcRRSt?;MqoqPB!`1u7E@zv7kud%dp>qM~P6}bD}{nH|#lxNhdgvy|}OuTHMQhQt
`$43Or+?31TIL&&wUTCz+trB++`57L@uQBFf#SIs|0)p0uA*zziJSjAaM(Oi~&3XkZ&3+VP`6Cl-
0@pcm#C49Id~w`bULTd>r=`+Ec%x0QcYP^CiBQT$6UGG3;=4vOALkmaF!s!XmxfDpuT&6jgL|)J7KC@dl71V13B@qn1sv?jCtf)RcjdV~n(+7|Q{m3BM
Yl%*<1ZlA86i?A%*!L-{~BS7(~yv7nm}F09#Zl03!xvavYhC_1Or)G7ZteyS<xpdkhsFM!sa-AQDi8oMbJ)jP)ZQBC){@6CSFg4v0D-
32<8vXo|HeN|9gb39+S;Am2Hn;%%~^Pr@R|6PYhpS%WjI9PwcB2&{0PZ9&zTxBmQB8tsIf*cZ+3344(v+%!4@-Ob~7I?kRNQWPOjNFz1lp2p-
qIeng((q$hs@!tqk*-v>o^N^08%V>~HNQChAYn+?aC_(gkKTHh#a`fDv+%OfYJR?-
<(Kx#j;2k5))Nqqy&dYz@*X;I<h6N@l=xmdyqufK?}j1NzjSq>$=Gqk~4H@kvIRYm;@o0T}{I(p70boeyypp2rIL`heRh4ayAjFPa18F{FAQ@c=|&hWM
|NSE$N#FS%qZr|1&cs;~=OT1h>kRQ0jE5-
v3kaJAKu>pNv=>!m8r(4eb19X%Gw+vzlr~Alkx6NV4RbFTl)CtoCJELwVZdxLW`{4OrBxJBNu0jeG#qCU}kikx>^w$3%&gO%eh+tU`hR%+Mw*pIxo2pd
Czkc*Z6~AfpTKs9DQ4f5<A{+XG1+{#@k{F|<MG~~gm17pEi=k`Djas$YDpXtCg6)X>O>S7dhiTU^TqMn4<=gRlFMFf0K9KKP@J!N6y-
L&GMY~ji^~dOnaL<lv2c9033{X)Xm0L!0vrwr>yK0rKU|XfocwC}3qfjjx^+FL$tTmRD=R-
wEo)Bh&Uz_DdqXx>3h9>7+qf{>yTA<Ms8l`3nV9PA69s;g<rHsA8CDJGrc;%%F!JTdEpl8KN>nc<?zEEr4(-
QhmqHHdZcN*Xh%4Ne^OT+r2KUlGXg@l+E<Im;e?taQzlj&A!*Pb~+<+(c<22JMpM+0k5e4qeT4A2a~W`He8n_0=ZOISmv6UeQD$wy{)Jg^1>E0B!&fN5
Trc#hZ<4XQh?(-76AlYl36-x3LUV!jJxS;E=LUf3T!_h$$AyWt%o)5g`EAEKTTUTTpg-Ef?X{H*uo2jF)7ucB;mT5j$to8K8CBlj)Lg7?u6M4Zyc>%HC
YNPuxBYY#b?`$dVfbO_$lB`0%yTGxcI?S5tg4zWM6_*65p5#%y9@}*~GE9`j$uPpZ-
a)_j|XQhuXpPJsuH^5})dA1<FJwPrhK5tsOzSmhUoTMBUh~iZc>CXIBknf59ZOSt6<z2teQk1K$C;<AAS=#hdDB0wPL2na*`<@H^8cWKN<iDY@yli{3T
s3OjrADOyvPb_$1TV4hzjf9@p-1=8VNWKq;jb6?D=L2-VlX7;^~o=X1i!Nb^43-
Rc&Y_`f~5^sFsCE=sqlUh<@8O)Je3KBs7)U*;YyAB38ZT*PBwFNN(#Js3jK3z-
ka_*rkJ6cOSxvg9L5`rneI689iQc}RtKH>UjnZDN*)$3ckmD46W07G;4t7FrFQ!i>SFF5)4XjNJVh=RO5YBgP+xU7DCYs8zP?@qlUct5!W+-
MX%2E%sY<>#MG=-
m%FwMBSVsLFC`)(g&3$#ih~ir)Jms1cPW|i4ObdMq>8A88hbv~bZwJPD<?d0n+@06H%MEcm>TQARM95eT?tp*Bh!Et~z0Vv|_pY%d4Z<(K%t|M(@0%=1
Y7N$Jr%tTjo?3d%K2GU%`n09jnUhPer&Ks+KW>Hd+{;!thYFSFKS80g_Q?vB7d}p*a_;y-
<xmCj;>i`n52qEmF1=KZYoPde`K03GsddyVFI7h!{NTZv6F+zmD$&oMT%!L@xKjA+%M=Pv`;Nfs%X~*5{Pl-
(FY)z<X|?(nUZz&xU;TaYgzE1=RraNms<M?&cwBzzPk6j~{77H@yncNBeBcWuSA-
!J`jp3Or}>nJQfGekggWz3wfyTJqgwvj$<^{lf0*O?%YT@|_ce+e$A68&|3#CVCw$RlPJR>S$Fua3u7eQ(FPx!#<nBMYJ$(JRchvXAy6I(_{}N{@@45A
y?Vy$x)|=afigty*?z6G6)hKLy2!<&3G#;a)|03xx)k+17QVK&>HwtKzE-?-
MZZ$CTal2$xYR#s0mB%8h+qKFT`T6NHLB&F=prJCFEtb^IYm{8lsMYafax<7pS=`#({LrBBm(g@CZEaM_#ZsZlr=LZDQl<5@+$?ElF_ED3`MUNxeUq+I
XthdJ4HeuJK5Bdxtg1-UPgtW4%P?H#NxAx1?D#yMsl0i2qgK(<*jL^xKpz2TaLeWDquS#_S?nOoo2nGes1>(1TG|}$10EM`o;3T?X00KPZ~+X-
vzuF$R=HZ+EEg(<443e^G|KGQu4+0SpkAw0U|ZS(8vFIyQ!o`)5qXVLWlPIZ<fZ(0vsNx@i@A$zRs1k`DlV87fW{B`yyy7fN~yY0(q2<zHcJ>w5kL6YW
lFuMSIRAIh5oFR0q9j+xK*e=(azwRo|db{+Ead}JmR<Yq)}=<sa1;FrBi(}@jFRSL~ozsJ4^oT@0ch-
Ok(<?lK*)`rg!4BnUFIl0*G=5w@fgH(G@IyaBV21nkFR^NW8iVCYxmGMmprG3*sk~${fla&3OKPf8u#Ilz2WDOgx`g63@MQB+Xx&x8S9sC9yV-eAzjfl
0t5MT5plgj~~c|{ZY$OxG-;7b+k~1`ih+1H3ROxq#5w`R5Re7XjSSu@5_B$0R6)P4pB?~-tq7!x_uRa@2cJN0@`)-
JW#3vS9!Nu8Mr1FJ_l68KDRpXJ*7G@$7Zp76svwe?R_&cgKch}@%!Ev%+wOp&v-
dbN(t%*vh@PSJ*kdWRvvyfP|m94)fFUnu1&KYemwg!#=~h7=5L+{X-A(J1L*^g34LP}r4KqjBmWDoAqFx
"""

DESCRIPTOR = descriptor_pool.Default().AddSerializedFile(zlib.decompress(base64.b85decode(_SERIALIZED.replace("\n", ""))))
if DESCRIPTOR is None:  # the pure Python implementation answers with nothing
    DESCRIPTOR = descriptor_pool.Default().FindFileByName("minicaffe/proto/caffe.proto")

for _name, _message in DESCRIPTOR.message_types_by_name.items():
    globals()[_name] = message_factory.GetMessageClass(_message)
for _name, _enum in DESCRIPTOR.enum_types_by_name.items():
    globals()[_name] = EnumTypeWrapper(_enum)
    globals().update((_value.name, _value.number) for _value in _enum.values)
